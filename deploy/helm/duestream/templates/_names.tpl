{{/* Names, labels and references that several templates use. */}}

{{/* The beginning of all names. The longest suffix, -gateway-admin, makes 63 characters of it. */}}
{{- define "duestream.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- $name = .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- $name = .Release.Name -}}
{{- else -}}
{{- $name = printf "%s-%s" .Release.Name $name -}}
{{- end -}}
{{- $name | trunc 49 | trimSuffix "-" -}}
{{- end -}}

{{/* The labels that select all pods of the release. */}}
{{- define "duestream.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The labels of all objects. */}}
{{- define "duestream.labels" -}}
{{ include "duestream.selector" . }}
app.kubernetes.io/version: {{ default .Chart.AppVersion .Values.image.tag | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: duestream
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* metadata of an object: (dict "root" $ "suffix" "-bridge" "component" "bridge" "labels" dict "annotations" dict).
The last three may be left out. */}}
{{- define "duestream.metadata" -}}
{{- $root := .root -}}
name: {{ include "duestream.fullname" $root }}{{ .suffix }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "duestream.labels" $root | nindent 2 }}
  {{- with .component }}
  app.kubernetes.io/component: {{ . }}
  {{- end }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default (dict) .annotations) $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The labels that select the pods of a component: (dict "root" $ "component" "bridge"). */}}
{{- define "duestream.componentSelector" -}}
{{ include "duestream.selector" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "duestream.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "duestream.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The image of a component: (dict "root" $ "values" $.Values.bridge). */}}
{{- define "duestream.image" -}}
{{- $image := .root.Values.image -}}
{{- $repository := required "image.repository is required: an image that the cluster can pull" $image.repository -}}
{{- if .values.imageTag -}}
{{- printf "%s:%s" $repository .values.imageTag -}}
{{- else if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The name of the Secret that the chart creates. */}}
{{- define "duestream.redisSecret" -}}{{ include "duestream.fullname" . }}-redis{{- end -}}

{{/* The variables that connect to Redis, as a list in YAML: (dict "root" $ "values" $.Values.bridge). */}}
{{- define "duestream.redisEnv" -}}
{{- $redis := .values.redis -}}
{{- $name := $redis.existingSecret -}}
{{- if not $name -}}
{{- $redis = .root.Values.redis -}}
{{- $name = $redis.existingSecret -}}
{{- end -}}
{{- $urlKey := $redis.urlKey -}}
{{- $passwordKey := $redis.passwordKey -}}
{{- $sentinelPasswordKey := $redis.sentinelPasswordKey -}}
{{- if not $name -}}
{{- $_ := required "redis.existingSecret is required: the Secret with the URL of Redis (or redis.url)" $redis.url -}}
{{- $name = include "duestream.redisSecret" .root -}}
{{- $urlKey = "DUESTREAM_REDIS_URL" -}}
{{- $passwordKey = "" -}}
{{- $sentinelPasswordKey = "" -}}
{{- end -}}
- name: DUESTREAM_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ $name }}
      key: {{ $urlKey }}
{{- with $passwordKey }}
- name: DUESTREAM_REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ $name }}
      key: {{ . }}
{{- end }}
{{- with $sentinelPasswordKey }}
- name: DUESTREAM_SENTINEL_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ $name }}
      key: {{ . }}
{{- end }}
{{- with .root.Values.prefix }}
- name: DUESTREAM_PREFIX
  value: {{ . | quote }}
{{- end }}
{{- end -}}
