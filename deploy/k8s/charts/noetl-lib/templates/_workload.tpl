{{- define "noetl.workload" -}}
{{- $profile := include "noetl.profile" . | fromYaml -}}
{{- $stateful := eq $profile.workload "StatefulSet" -}}
apiVersion: apps/v1
kind: {{ $profile.workload }}
metadata:
  name: {{ include "noetl.fullname" . }}
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
spec:
  {{- if not (include "noetl.scaled" .) }}
  replicas: {{ .Values.replicas | int }}
  {{- end }}
  {{- if $stateful }}
  # A pod that comes back under its name takes its shards back at once; no pod waits for another to start.
  serviceName: {{ include "noetl.fullname" . }}-pods
  podManagementPolicy: Parallel
  updateStrategy: {type: RollingUpdate}
  {{- else }}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  {{- end }}
  revisionHistoryLimit: 5
  selector:
    matchLabels:
      {{- include "noetl.selectorLabels" . | nindent 6 }}
  template:
    {{- include "noetl.pod" . | nindent 4 }}
{{- end -}}

{{/* Not empty if something else than this chart says how many pods there are. */}}
{{- define "noetl.scaled" -}}
{{- if and .Values.autoscaling (or .Values.autoscaling.enabled (and .Values.autoscaling.keda .Values.autoscaling.keda.enabled)) -}}
true
{{- end -}}
{{- end -}}

{{- define "noetl.services" -}}
{{- $profile := include "noetl.profile" . | fromYaml -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "noetl.fullname" . }}
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
  {{- with .Values.service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .Values.service.type }}
  selector:
    {{- include "noetl.selectorLabels" . | nindent 4 }}
  ports:
    {{- if $profile.grpc }}
    - {name: grpc, port: 7700, targetPort: grpc, appProtocol: grpc}
    {{- end }}
    {{- if $profile.http }}
    - {name: http, port: 8080, targetPort: http, appProtocol: http}
    {{- end }}
    - {name: metrics, port: 9090, targetPort: metrics, appProtocol: http}
{{- if eq $profile.workload "StatefulSet" }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ include "noetl.fullname" . }}-pods
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
    noetl.io/scrape: "false"
spec:
  clusterIP: None
  # An owner of shards is called by its own name, also while it hands over.
  publishNotReadyAddresses: true
  selector:
    {{- include "noetl.selectorLabels" . | nindent 4 }}
  ports:
    - {name: grpc, port: 7700, targetPort: grpc, appProtocol: grpc}
{{- end }}
{{- end -}}

{{- define "noetl.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "noetl.serviceAccountName" . }}
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
  {{- with .Values.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end }}
{{- end -}}

{{- define "noetl.disruptionBudget" -}}
{{- if .Values.podDisruptionBudget.enabled }}
apiVersion: {{ semverCompare ">=1.21-0" .Capabilities.KubeVersion.Version | ternary "policy/v1" "policy/v1beta1" }}
kind: PodDisruptionBudget
metadata:
  name: {{ include "noetl.fullname" . }}
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .Values.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "noetl.selectorLabels" . | nindent 6 }}
{{- end }}
{{- end -}}
