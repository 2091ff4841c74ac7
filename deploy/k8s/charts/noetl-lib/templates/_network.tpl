{{/* Exactly the edges of the architecture: who calls it, whom it calls, its stores, names and metrics. */}}
{{- define "noetl.networkPolicy" -}}
{{- $profile := include "noetl.profile" . | fromYaml -}}
{{- $needs := $profile.needs -}}
{{- $policy := .Values.networkPolicy -}}
{{- if $policy.enabled }}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "noetl.fullname" . }}
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "noetl.selectorLabels" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    - from:
        - podSelector: {matchLabels: {app.kubernetes.io/name: noetl-{{ .Chart.Name }}-test}}
        {{- with $policy.metricsFrom }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports: [{port: metrics, protocol: TCP}]
    {{- if $profile.calledBy }}
    - from:
        {{- range $profile.calledBy }}
        - podSelector: {matchLabels: {app.kubernetes.io/name: noetl-{{ . }}}}
        {{- if eq . "worker" }}
        # Frames run in executors of Spark too, which claim and commit them by themselves.
        - podSelector: {matchExpressions: [{key: noetl_io_executor_of, operator: Exists}]}
        {{- end }}
        {{- end }}
      ports: [{port: grpc, protocol: TCP}]
    {{- end }}
    {{- if and $profile.http $policy.clients }}
    - from:
        {{- toYaml $policy.clients | nindent 8 }}
      ports: [{port: grpc, protocol: TCP}, {port: http, protocol: TCP}]
    {{- end }}
    {{- with include (printf "noetl.ingress.%s" .Chart.Name) . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $policy.extraIngress }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  egress:
    - to:
        - namespaceSelector: {}
          podSelector: {matchLabels: {k8s-app: kube-dns}}
      ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
    {{- range $profile.calls }}
    - to: [{podSelector: {matchLabels: {app.kubernetes.io/name: noetl-{{ . }}}}}]
      ports: [{port: 7700, protocol: TCP}]
    {{- end }}
    {{- range $store := list "postgres" "nats" "payload" }}
    {{- if has $store $needs }}
    {{- with index $policy $store }}
    - ports: {{ toJson .ports }}
      {{- with .to }}
      to:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- end }}
    {{- end }}
    {{- end }}
    {{- with $policy.telemetry }}
    - ports: {{ toJson .ports }}
      {{- with .to }}
      to:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- end }}
    {{- with include (printf "noetl.egress.%s" .Chart.Name) . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $policy.extraEgress }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
{{- end -}}
