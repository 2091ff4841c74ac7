{{/* Where a pod runs. */}}
{{- define "noetl.env.place" -}}
- name: NOETL_NODE_ID
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- with .Values.topology }}
{{- if .cluster }}
- {name: NOETL_CLUSTER_ID, value: {{ .cluster | quote }}}
{{- end }}
{{- if .region }}
- {name: NOETL_REGION, value: {{ .region | quote }}}
{{- end }}
{{- if .zone }}
- {name: NOETL_ZONE, value: {{ .zone | quote }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* The environment of a service: what its profile needs, where it runs, then what the operator adds. */}}
{{- define "noetl.env" -}}
{{- $profile := include "noetl.profile" . | fromYaml -}}
{{- $needs := $profile.needs -}}
- name: NOETL_INSTANCE
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{ include "noetl.env.place" . }}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- {name: NOETL_SHARD_COUNT, value: {{ .Values.shardCount | int | quote }}}
- {name: NOETL_LOG_LEVEL, value: {{ .Values.logLevel | quote }}}
- {name: NOETL_STOP_SECONDS, value: {{ .Values.stopSeconds | int | quote }}}
- {name: NOETL_OPS_LISTEN, value: {{ printf "%s:9090" .Values.listenHost | quote }}}
{{- if $profile.grpc }}
- {name: NOETL_GRPC_LISTEN, value: {{ printf "%s:7700" .Values.listenHost | quote }}}
{{- end }}
{{- if $profile.http }}
- {name: NOETL_HTTP_LISTEN, value: {{ printf "%s:8080" .Values.listenHost | quote }}}
{{- end }}
{{- if eq $profile.workload "StatefulSet" }}
- name: NOETL_ADVERTISED_ADDRESS
  value: $(NOETL_INSTANCE).{{ include "noetl.fullname" . }}-pods.$(POD_NAMESPACE).svc:7700
{{- end }}
{{- range $profile.calls }}
- {name: {{ printf "NOETL_%s_ADDRESS" (upper .) }}, value: {{ index $.Values.addresses . | quote }}}
{{- end }}
{{- if has "postgres" $needs }}
- name: NOETL_POSTGRES_DSN
  valueFrom: {secretKeyRef: {name: {{ .Values.postgres.existingSecret | quote }}, key: {{ .Values.postgres.dsnKey | quote }}}}
{{- end }}
{{- if has "nats" $needs }}
{{- if .Values.nats.urlKey }}
- name: NOETL_NATS_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.nats.existingSecret | quote }}, key: {{ .Values.nats.urlKey | quote }}}}
{{- else }}
- {name: NOETL_NATS_URL, value: {{ .Values.nats.url | quote }}}
{{- end }}
{{- if and .Values.nats.existingSecret .Values.nats.tokenKey }}
- {name: NOETL_NATS_TOKEN_FILE, value: {{ printf "/etc/noetl/nats/%s" .Values.nats.tokenKey | quote }}}
{{- end }}
{{- end }}
{{- if has "payload" $needs }}
- {name: NOETL_PAYLOAD_URL, value: {{ .Values.payload.url | quote }}}
{{- with .Values.payload.endpoint }}
- {name: NOETL_PAYLOAD_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- if has "token" $needs }}
- {name: NOETL_TOKEN_FILE, value: {{ printf "/etc/noetl/auth/%s" .Values.auth.tokenKey | quote }}}
{{- end }}
{{- if has "tokens" $needs }}
- {name: NOETL_TOKENS_FILE, value: {{ printf "/etc/noetl/auth/%s" .Values.auth.tokensKey | quote }}}
{{- end }}
{{- with .Values.telemetry.otlpEndpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- if and (has "credentialKeys" $needs) .Values.credentialKeys.existingSecret }}
- {name: NOETL_CREDENTIAL_KEYS_FILE, value: {{ printf "/etc/noetl/credentials/%s" .Values.credentialKeys.key | quote }}}
{{- end }}
{{- with include (printf "noetl.env.%s" .Chart.Name) . | trim }}
{{ . }}
{{- end }}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ include "noetl.text" $value | quote }}}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Variables of a provider of object stores, such as AWS_ACCESS_KEY_ID, come whole from a Secret. */}}
{{- define "noetl.envFrom" -}}
{{- $needs := (include "noetl.profile" . | fromYaml).needs -}}
{{- if and (has "payload" $needs) .Values.payload.envFromSecret }}
- secretRef: {name: {{ .Values.payload.envFromSecret | quote }}}
{{- end }}
{{- with .Values.extraEnvFrom }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A value as text. Numbers of values files are floating point to Helm, which would write 1073741824 as 1.073741824e+09. */}}
{{- define "noetl.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ int64 . }}
{{- else -}}
{{ toString . }}
{{- end -}}
{{- end -}}
