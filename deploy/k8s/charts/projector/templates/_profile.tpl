{{- define "noetl.profile.projector" -}}
workload: StatefulSet
command: [noetl-projector]
grpc: true
http: false
needs: [postgres, nats, token, tokens]
calls: [api]
calledBy: [api, reaper, projector]
{{- end -}}
