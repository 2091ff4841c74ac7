{{- define "noetl.profile.outbox-publisher" -}}
workload: Deployment
command: [noetl-outbox-publisher]
grpc: true
http: false
needs: [postgres, nats, tokens]
calls: []
calledBy: []
{{- end -}}
