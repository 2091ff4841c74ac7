{{- define "noetl.profile.worker" -}}
workload: Deployment
command: [noetl-worker]
grpc: true
http: false
needs: [nats, payload, token, tokens]
calls: [api, planner]
calledBy: []
{{- end -}}
