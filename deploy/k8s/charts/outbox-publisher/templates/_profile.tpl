{{- define "noetl.profile.outbox-publisher" -}}
workload: Deployment
command: [noetl-outbox-publisher]
grpc: true
http: false
needs: [postgres, nats, tokens]
calls: []
calledBy: []
{{- end -}}

{{/* Nothing beyond what its profile says. */}}
{{- define "noetl.env.outbox-publisher" -}}{{- end -}}
{{- define "noetl.ports.outbox-publisher" -}}{{- end -}}
{{- define "noetl.ingress.outbox-publisher" -}}{{- end -}}
{{- define "noetl.egress.outbox-publisher" -}}{{- end -}}
{{- define "noetl.usesKubernetes.outbox-publisher" -}}{{- end -}}
