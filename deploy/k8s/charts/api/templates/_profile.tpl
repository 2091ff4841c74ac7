{{- define "noetl.profile.api" -}}
workload: Deployment
command: [noetl-api]
grpc: true
http: true
needs: [postgres, payload, token, tokens, credentialKeys]
calls: [planner, projector]
calledBy: [worker, planner, projector, reaper]
{{- end -}}

{{/* Nothing beyond what its profile says. */}}
{{- define "noetl.env.api" -}}{{- end -}}
{{- define "noetl.ports.api" -}}{{- end -}}
{{- define "noetl.ingress.api" -}}{{- end -}}
{{- define "noetl.egress.api" -}}{{- end -}}
{{- define "noetl.usesKubernetes.api" -}}{{- end -}}
