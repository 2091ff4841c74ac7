{{- define "noetl.profile.planner" -}}
workload: StatefulSet
command: [noetl-planner]
grpc: true
http: false
needs: [nats, payload, token, tokens]
calls: [api]
calledBy: [worker, api, reaper]
{{- end -}}

{{/* Nothing beyond what its profile says. */}}
{{- define "noetl.env.planner" -}}{{- end -}}
{{- define "noetl.ports.planner" -}}{{- end -}}
{{- define "noetl.ingress.planner" -}}{{- end -}}
{{- define "noetl.egress.planner" -}}{{- end -}}
{{- define "noetl.usesKubernetes.planner" -}}{{- end -}}
