{{- define "noetl.profile.reaper" -}}
workload: Deployment
command: [noetl-reaper]
grpc: false
http: false
needs: [token]
calls: [api, projector, planner]
calledBy: []
{{- end -}}
