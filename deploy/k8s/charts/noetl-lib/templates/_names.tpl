{{/* The name of everything that a chart makes. It does not depend on the release, so that services find each other. */}}
{{- define "noetl.fullname" -}}
{{- .Values.fullnameOverride | default (printf "noetl-%s" .Chart.Name) | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "noetl.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "noetl.fullname" .) -}}
{{- end -}}

{{/* What selects the pods: these labels never change in the life of an installation. */}}
{{- define "noetl.selectorLabels" -}}
app.kubernetes.io/name: noetl-{{ .Chart.Name }}
app.kubernetes.io/instance: {{ include "noetl.fullname" . }}
{{- end -}}

{{- define "noetl.labels" -}}
{{ include "noetl.selectorLabels" . }}
app.kubernetes.io/component: {{ .Chart.Name }}
app.kubernetes.io/part-of: noetl
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* A digest pins the bytes and wins over the tag. */}}
{{- define "noetl.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "noetl.profile" -}}
{{ include (printf "noetl.profile.%s" .Chart.Name) . }}
{{- end -}}
