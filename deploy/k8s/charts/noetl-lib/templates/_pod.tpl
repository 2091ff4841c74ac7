{{/* Who every pod is, those that a service starts by itself included. */}}
{{- define "noetl.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "noetl.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The pod: one container, not root, nothing writable but what it needs. */}}
{{- define "noetl.pod" -}}
{{- $profile := include "noetl.profile" . | fromYaml -}}
{{- $needs := $profile.needs -}}
metadata:
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "noetl.serviceAccountName" . }}
  automountServiceAccountToken: {{ or .Values.serviceAccount.automountToken (ne (include (printf "noetl.usesKubernetes.%s" .Chart.Name) .) "") }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ add (.Values.stopSeconds | int) (.Values.drainSeconds | int) 5 }}
  securityContext:
    {{- include "noetl.podSecurity" . | nindent 4 }}
  containers:
    - name: {{ .Chart.Name }}
      image: {{ include "noetl.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      # Arguments, so that the entry point of the image stays.
      args: {{ toJson $profile.command }}
      env:
        {{- include "noetl.env" . | nindent 8 }}
      {{- with include "noetl.envFrom" . | trim }}
      envFrom:
        {{- . | nindent 8 }}
      {{- end }}
      ports:
        {{- if $profile.grpc }}
        - {name: grpc, containerPort: 7700}
        {{- end }}
        {{- if $profile.http }}
        - {name: http, containerPort: 8080}
        {{- end }}
        - {name: metrics, containerPort: 9090}
        {{- with include (printf "noetl.ports.%s" .Chart.Name) . | trim }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with .Values.extraPorts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- include "noetl.probes" . | nindent 6 }}
      {{- if gt (.Values.drainSeconds | int) 0 }}
      lifecycle:
        # Endpoints forget a pod a little after it was told to stop: callers must not meet a closed port meanwhile.
        preStop: {exec: {command: ["sleep", "{{ .Values.drainSeconds | int }}"]}}
      {{- end }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        {{- include "noetl.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if or (has "token" $needs) (has "tokens" $needs) }}
        - {name: auth, mountPath: /etc/noetl/auth, readOnly: true}
        {{- end }}
        {{- if and (has "nats" $needs) .Values.nats.existingSecret .Values.nats.tokenKey }}
        - {name: nats, mountPath: /etc/noetl/nats, readOnly: true}
        {{- end }}
        {{- if and (has "credentialKeys" $needs) .Values.credentialKeys.existingSecret }}
        - {name: credentials, mountPath: /etc/noetl/credentials, readOnly: true}
        {{- end }}
        {{- if include (printf "noetl.usesKubernetes.%s" .Chart.Name) . }}
        - {name: executor, mountPath: /etc/noetl/executor, readOnly: true}
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: {{ .Values.tmpSizeLimit | quote }}}
    {{- if or (has "token" $needs) (has "tokens" $needs) }}
    - name: auth
      secret: {secretName: {{ .Values.auth.existingSecret | default (printf "noetl-%s-auth" .Chart.Name) | quote }}, defaultMode: 288}
    {{- end }}
    {{- if and (has "nats" $needs) .Values.nats.existingSecret .Values.nats.tokenKey }}
    - name: nats
      secret: {secretName: {{ .Values.nats.existingSecret | quote }}, defaultMode: 288}
    {{- end }}
    {{- if and (has "credentialKeys" $needs) .Values.credentialKeys.existingSecret }}
    - name: credentials
      secret: {secretName: {{ .Values.credentialKeys.existingSecret | quote }}, defaultMode: 288}
    {{- end }}
    {{- if include (printf "noetl.usesKubernetes.%s" .Chart.Name) . }}
    - name: executor
      configMap: {name: {{ include "noetl.fullname" . }}-executor}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.topologySpread.enabled }}
  topologySpreadConstraints:
    {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ $key }}
      whenUnsatisfiable: {{ $.Values.topologySpread.whenUnsatisfiable }}
      labelSelector:
        matchLabels:
          {{- include "noetl.selectorLabels" $ | nindent 10 }}
    {{- end }}
  {{- end }}
{{- end -}}

{{/* Alive: the process answers at all. Ready and started: it can do its work. gRPC probes are as old as Kubernetes 1.24. */}}
{{- define "noetl.probes" -}}
{{- $profile := include "noetl.profile" . | fromYaml -}}
{{- $native := and $profile.grpc (semverCompare ">=1.24-0" .Capabilities.KubeVersion.Version) -}}
startupProbe:
  httpGet: {path: /health/ready, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: {{ div (.Values.startupSeconds | int) 2 }}
readinessProbe:
  {{- if $native }}
  grpc: {port: 7700}
  {{- else }}
  httpGet: {path: /health/ready, port: metrics}
  {{- end }}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /health/live, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}
