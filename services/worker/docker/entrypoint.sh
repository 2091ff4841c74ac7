#!/usr/bin/env bash
# Runs the command that it is given, a worker for one. With `executor` as its first argument it is an executor of Spark:
# Spark on Kubernetes starts pods of this image that way, and tells them the rest in SPARK_… variables.
set -euo pipefail

if [ "${1:-}" != executor ]; then
  exec "$@"
fi

options=()
while IFS= read -r line; do
  options+=("${line#*=}") # SPARK_JAVA_OPT_0=…, in their order
done < <(env | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4n || true)

exec "${JAVA_HOME}/bin/java" \
  "${options[@]}" \
  -Xms"${SPARK_EXECUTOR_MEMORY}" -Xmx"${SPARK_EXECUTOR_MEMORY}" \
  -cp "${SPARK_HOME}/jars/*:${SPARK_CLASSPATH:-}" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "${SPARK_DRIVER_URL}" \
  --executor-id "${SPARK_EXECUTOR_ID}" \
  --cores "${SPARK_EXECUTOR_CORES}" \
  --app-id "${SPARK_APPLICATION_ID}" \
  --hostname "${SPARK_EXECUTOR_POD_IP}" \
  --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:-0}" \
  --podName "${SPARK_EXECUTOR_POD_NAME}"
