{{/* The Deployment of a component:

  root        the context of the chart
  component   bridge, gateway or push
  args        the arguments of the container, without extraArgs
  env         variables of this component, besides those of all components: a list
  ports       ports besides metrics: a list
  mounts      Secrets to mount: a list of (dict "name" "tls" "secret" "name of the Secret" "path" "/etc/…")
  liveness    the liveness probe, without its times; "" for GET /healthz
  health      true: the process writes a health file to /run/duestream
  preStop     seconds to sleep before the process is told to stop
*/}}
{{- define "duestream.deployment" -}}
{{- $root := .root -}}
{{- $values := index $root.Values .component -}}
{{- $metrics := $root.Values.metrics -}}
{{- $preStop := int (default 0 .preStop) -}}
{{- $stop := add $preStop (int $values.shutdownTimeoutSeconds) | int -}}
{{- $grace := add $stop 20 | int -}}
{{- if not (kindIs "invalid" $values.terminationGracePeriodSeconds) -}}
{{- $grace = int $values.terminationGracePeriodSeconds -}}
{{- if lt $grace $stop -}}
{{- fail (printf "%s.terminationGracePeriodSeconds is %d, and a clean stop may take %d s: pods would be killed before"
  .component $grace $stop) -}}
{{- end -}}
{{- end -}}
{{- $mounts := .mounts -}}
{{- with $root.Values.redis.tls.existingSecret -}}
{{- $mounts = append $mounts (dict "name" "redis-tls" "secret" . "path" "/etc/duestream/redis-tls") -}}
{{- end -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "duestream.metadata" (dict "root" $root "suffix" (printf "-%s" .component)
    "component" .component) | nindent 2 }}
spec:
  {{- if not (kindIs "invalid" $values.replicas) }}
  replicas: {{ int $values.replicas }}
  {{- end }}
  strategy:
    type: {{ $values.strategy.type }}
    {{- if eq $values.strategy.type "RollingUpdate" }}
    rollingUpdate:
      {{- toYaml $values.strategy.rollingUpdate | nindent 6 }}
    {{- end }}
  selector:
    matchLabels:
      {{- include "duestream.componentSelector" (dict "root" $root "component" .component) | nindent 6 }}
  template:
    metadata:
      labels:
        {{- /* Without the version of the chart, so that another chart alone restarts no pod. */}}
        {{- include "duestream.componentSelector" (dict "root" $root "component" .component) | nindent 8 }}
        {{- with merge (dict) $root.Values.podLabels $root.Values.commonLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- $annotations := merge (dict) $root.Values.podAnnotations $root.Values.commonAnnotations }}
      {{- if $metrics.scrapeAnnotations }}
      {{- $_ := set $annotations "prometheus.io/scrape" "true" }}
      {{- $_ := set $annotations "prometheus.io/port" (toString (int $metrics.port)) }}
      {{- end }}
      {{- if and $root.Values.redis.url (not $values.redis.existingSecret) }}
      {{- /* A pod reads the URL at its start only, so that another URL needs other pods. */}}
      {{- $_ := set $annotations "checksum/redis" (sha256sum $root.Values.redis.url) }}
      {{- end }}
      {{- with $annotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "duestream.serviceAccount" $root }}
      automountServiceAccountToken: false
      # The variables of Services would only crowd the environment.
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ $grace }}
      {{- with $root.Values.image.pullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $root.Values.podSecurityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $root.Values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $root.Values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $root.Values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $root.Values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $root.Values.topologySpreadConstraints }}
      topologySpreadConstraints:
        {{- range . }}
        - {{ toYaml . | indent 10 | trim }}
          {{- if not .labelSelector }}
          labelSelector:
            matchLabels:
              {{- include "duestream.componentSelector" (dict "root" $root "component" $.component) | nindent 14 }}
          matchLabelKeys: [pod-template-hash]
          {{- end }}
        {{- end }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "duestream.image" (dict "root" $root "values" $values) | quote }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          args:
            {{- toYaml (concat .args $values.extraArgs) | nindent 12 }}
          env:
            {{- include "duestream.redisEnv" (dict "root" $root "values" $values) | nindent 12 }}
            - name: DUESTREAM_LOG_LEVEL
              value: {{ $root.Values.log.level | quote }}
            - name: DUESTREAM_LOG_FORMAT
              value: {{ $root.Values.log.format | quote }}
            - name: DUESTREAM_METRICS_ADDR
              value: {{ printf ":%d" (int $metrics.port) | quote }}
            {{- if .health }}
            - name: DUESTREAM_HEALTH_FILE
              value: /run/duestream/health
            {{- end }}
            {{- with .env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
            {{- range $name, $value := $values.settings }}
            - name: {{ $name }}
              value: {{ include "duestream.text" $value | quote }}
            {{- end }}
            {{- with $values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - name: metrics
              containerPort: {{ int $metrics.port }}
            {{- with .ports }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          # Asks only this process, not Redis: a process that waits for Redis is not restarted.
          livenessProbe:
            {{- if .liveness }}
            {{- toYaml .liveness | nindent 12 }}
            {{- else }}
            httpGet:
              path: /healthz
              port: metrics
            {{- end }}
            initialDelaySeconds: 10
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          readinessProbe:
            httpGet:
              path: /readyz
              port: metrics
            periodSeconds: 5
            timeoutSeconds: 3
          {{- if $preStop }}
          lifecycle:
            preStop:
              sleep:
                seconds: {{ $preStop }}
          {{- end }}
          {{- with $values.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with $root.Values.securityContext }}
          securityContext:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- if or .health $mounts }}
          volumeMounts:
            {{- if .health }}
            - name: health
              mountPath: /run/duestream
            {{- end }}
            {{- range $mounts }}
            - name: {{ .name }}
              mountPath: {{ .path }}
              readOnly: true
            {{- end }}
          {{- end }}
      {{- if or .health $mounts }}
      volumes:
        {{- if .health }}
        # The process writes its health file here, and the liveness probe reads it.
        - name: health
          emptyDir:
            medium: Memory
            sizeLimit: 1Mi
        {{- end }}
        {{- range $mounts }}
        - name: {{ .name }}
          secret:
            secretName: {{ .secret }}
            # 0440: its owner and group may read.
            defaultMode: 288
        {{- end }}
      {{- end }}
{{- end -}}

{{/* The PodDisruptionBudget of a component: (dict "root" $ "component" "bridge"). */}}
{{- define "duestream.podDisruptionBudget" -}}
{{- $values := index .root.Values .component -}}
{{- if $values.podDisruptionBudget.enabled -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "duestream.metadata" (dict "root" .root "suffix" (printf "-%s" .component)
    "component" .component) | nindent 2 }}
spec:
  maxUnavailable: {{ $values.podDisruptionBudget.maxUnavailable }}
  # A pod is not ready while Redis is away or its queues are late. Such a pod does not keep a node from being drained.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "duestream.componentSelector" . | nindent 6 }}
{{- end -}}
{{- end -}}

{{/* A text, a boolean or a whole number as text. Numbers of a file of values are floating-point numbers. */}}
{{- define "duestream.text" -}}
{{- if kindIs "float64" . -}}{{- int64 . -}}{{- else -}}{{- . -}}{{- end -}}
{{- end -}}
