{{- define "noetl.profile.worker" -}}
workload: Deployment
command: [noetl-worker]
grpc: true
http: false
needs: [nats, payload, token, tokens]
calls: [api, planner]
calledBy: []
{{- end -}}

{{/* Executors of Spark are pods of the worker's image. They call its driver, it starts them through the Kubernetes API. */}}
{{- define "noetl.usesKubernetes.worker" -}}
{{- if .Values.spark.executors.enabled }}true{{ end -}}
{{- end -}}

{{- define "noetl.env.worker" -}}
{{- if .Values.spark.executors.enabled }}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: NOETL_SPARK_MASTER, value: "k8s://https://kubernetes.default.svc"}
- name: NOETL_SPARK_PROPERTIES
  value: >-
    {"spark.kubernetes.namespace": "$(POD_NAMESPACE)",
    "spark.kubernetes.container.image": {{ include "noetl.image" . | toJson }},
    "spark.kubernetes.driver.pod.name": "$(NOETL_INSTANCE)",
    "spark.kubernetes.executor.podTemplateFile": "/etc/noetl/executor/pod.yaml",
    "spark.kubernetes.executor.label.noetl_io_executor_of": {{ include "noetl.fullname" . | toJson }},
    "spark.driver.host": "$(POD_IP)", "spark.driver.bindAddress": "0.0.0.0",
    "spark.driver.port": "7078", "spark.driver.blockManager.port": "7079",
    "spark.blockManager.port": "7079",
    "spark.executor.instances": "{{ .Values.spark.executors.instances | int }}",
    "spark.executor.cores": "{{ .Values.spark.executors.cores | int }}",
    "spark.executor.memory": {{ .Values.spark.executors.memory | toJson }}}
{{- end }}
{{- end -}}

{{- define "noetl.ports.worker" -}}
{{- if .Values.spark.executors.enabled }}
- {name: spark-driver, containerPort: 7078}
- {name: spark-blocks, containerPort: 7079}
{{- end }}
{{- end -}}

{{- define "noetl.ingress.worker" -}}
{{- if .Values.spark.executors.enabled }}
- from: [{podSelector: {matchLabels: {noetl_io_executor_of: {{ include "noetl.fullname" . }}}}}]
  ports: [{port: 7078, protocol: TCP}, {port: 7079, protocol: TCP}]
{{- end }}
{{- end -}}

{{- define "noetl.egress.worker" -}}
{{- if .Values.spark.executors.enabled }}
- to: [{podSelector: {matchLabels: {noetl_io_executor_of: {{ include "noetl.fullname" . }}}}}]
  ports: [{port: 7079, protocol: TCP}]
# The Kubernetes API, which is no pod that a selector could name.
- ports: [{port: 443, protocol: TCP}, {port: 6443, protocol: TCP}]
{{- end }}
{{- end -}}
