{{- define "noetl.profile.api" -}}
workload: Deployment
command: [noetl-api]
grpc: true
http: true
needs: [postgres, payload, token, tokens, credentialKeys]
calls: [planner, projector]
calledBy: [worker, planner, projector, reaper]
{{- end -}}
