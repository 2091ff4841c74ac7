{{- define "noetl.profile.reaper" -}}
workload: Deployment
command: [noetl-reaper]
grpc: false
http: false
needs: [token]
calls: [api, projector, planner]
calledBy: []
{{- end -}}

{{/* Nothing beyond what its profile says. */}}
{{- define "noetl.env.reaper" -}}{{- end -}}
{{- define "noetl.ports.reaper" -}}{{- end -}}
{{- define "noetl.ingress.reaper" -}}{{- end -}}
{{- define "noetl.egress.reaper" -}}{{- end -}}
{{- define "noetl.usesKubernetes.reaper" -}}{{- end -}}
