{{/* `helm test`: the service is ready, and its metrics are those of NoETL. */}}
{{- define "noetl.test" -}}
apiVersion: v1
kind: Pod
metadata:
  name: {{ include "noetl.fullname" . }}-test
  labels:
    app.kubernetes.io/name: noetl-{{ .Chart.Name }}-test
    app.kubernetes.io/part-of: noetl
  annotations:
    helm.sh/hook: test
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: test
      image: {{ include "noetl.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command:
        - python
        - -c
        - |
          import sys, urllib.request
          base = sys.argv[1]
          urllib.request.urlopen(f"{base}/health/ready", timeout=10).read()
          metrics = urllib.request.urlopen(f"{base}/metrics", timeout=10).read().decode()
          sys.exit(0 if "noetl_" in metrics else "no metric of NoETL is shown")
        - http://{{ include "noetl.fullname" . }}:9090
      resources:
        requests: {cpu: 50m, memory: 64Mi}
        limits: {cpu: 500m, memory: 128Mi}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
{{- end -}}

{{/* Everything that every chart renders. */}}
{{- define "noetl.all" -}}
{{- range $part := list "workload" "services" "serviceAccount" "disruptionBudget" "networkPolicy" "serviceMonitor" "prometheusRule" "test" }}
{{- with include (printf "noetl.%s" $part) $ | trim }}
---
{{ . }}
{{- end }}
{{- end }}
{{- end -}}
