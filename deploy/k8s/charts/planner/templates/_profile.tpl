{{- define "noetl.profile.planner" -}}
workload: StatefulSet
command: [noetl-planner]
grpc: true
http: false
needs: [nats, payload, token, tokens]
calls: [api]
calledBy: [worker, api, reaper, planner]
{{- end -}}
