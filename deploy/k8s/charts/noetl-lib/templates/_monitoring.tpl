{{- define "noetl.serviceMonitor" -}}
{{- if .Values.serviceMonitor.enabled }}
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ include "noetl.fullname" . }}
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
    {{- with .Values.serviceMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "noetl.selectorLabels" . | nindent 6 }}
    matchExpressions:
      - {key: noetl.io/scrape, operator: DoesNotExist}
  endpoints:
    - port: metrics
      path: /metrics
      interval: {{ .Values.serviceMonitor.interval }}
      honorLabels: true
{{- end }}
{{- end -}}

{{/* Alerts are files of the chart, in the form that promtool checks; nothing in them is a template of Helm. */}}
{{- define "noetl.prometheusRule" -}}
{{- if .Values.prometheusRule.enabled }}
{{- with .Files.Get "alerts.yaml" }}
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {{ include "noetl.fullname" $ }}
  labels:
    {{- include "noetl.labels" $ | nindent 4 }}
    {{- with $.Values.prometheusRule.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}
