{{- define "noetl.profile.projector" -}}
workload: StatefulSet
command: [noetl-projector]
grpc: true
http: false
needs: [postgres, nats, token, tokens]
calls: [api]
calledBy: [api, reaper]
{{- end -}}

{{/* Nothing beyond what its profile says. */}}
{{- define "noetl.env.projector" -}}{{- end -}}
{{- define "noetl.ports.projector" -}}{{- end -}}
{{- define "noetl.ingress.projector" -}}{{- end -}}
{{- define "noetl.egress.projector" -}}{{- end -}}
{{- define "noetl.usesKubernetes.projector" -}}{{- end -}}
