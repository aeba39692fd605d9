{{- define "emberline.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "emberline.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "emberline.labels" -}}
{{ include "emberline.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "emberline.serviceAccount" -}}
{{ if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "emberline.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "emberline.image" -}}
{{- $repository := required "image.repository: name the image that you built from the Dockerfile" .Values.image.repository -}}
{{- if .Values.image.digest }}{{ $repository }}@{{ .Values.image.digest }}{{ else }}{{ $repository }}:{{ .Values.image.tag }}{{ end }}
{{- end }}

{{- define "emberline.metric" -}}
{{- .Values.autoscaling.metric.name | default (ternary "emberline_requests_per_second" "emberline_waiting_requests" (eq .Values.backend "triton")) }}
{{- end }}

{{/* What does not fit together is refused here, before a pod is. */}}
{{- define "emberline.check" -}}
{{- $models := .Values.models -}}
{{- $places := 0 -}}
{{- range list $models.existingClaim $models.claim.enabled $models.volume $models.url }}{{ if . }}{{ $places = add1 $places }}{{ end }}{{ end -}}
{{- if ne (int $places) 1 }}{{ fail "models: give one of existingClaim, claim.enabled, volume and url" }}{{ end -}}
{{- if le (int .Values.drain.graceSeconds) (int (add .Values.drain.preStopSeconds 20)) }}{{ fail "drain.graceSeconds: more than drain.preStopSeconds and the server's 20 s together" }}{{ end -}}
{{- if and .Values.tls.clientCa (not .Values.tls.existingSecret) }}{{ fail "tls.clientCa: needs tls.existingSecret" }}{{ end -}}
{{- if eq .Values.backend "triton" -}}
{{- if or .Values.tokens.existingSecret .Values.tls.existingSecret }}{{ fail "tokens, tls: Triton has neither: put a proxy in front of it (docs/serving.md)" }}{{ end -}}
{{- if gt (int .Values.server.workers) 1 }}{{ fail "server.workers: with Triton say triton.instances" }}{{ end -}}
{{- if or .Values.server.otelEndpoint .Values.server.logRequests }}{{ fail "server.otelEndpoint, server.logRequests: the embedded server has them, Triton does not" }}{{ end -}}
{{- if and (eq .Values.triton.device "cpu") (gt (int .Values.triton.gpus) 0) }}{{ fail "triton.gpus: 0 with triton.device cpu" }}{{ end -}}
{{- if and (ne .Values.triton.device "cpu") (eq (int .Values.triton.gpus) 0) }}{{ fail "triton.gpus: at least 1 with triton.device cuda" }}{{ end -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (not .Values.autoscaling.metric.enabled) (eq (int .Values.autoscaling.cpuUtilization) 0) }}{{ fail "autoscaling: by nothing? Give cpuUtilization or metric.enabled" }}{{ end -}}
{{- end }}

{{/* The action of a probe: path "live" or "ready". The kubelet shows no certificate, so where one is asked for it only connects. */}}
{{- define "emberline.probe" -}}
{{- if .root.Values.tls.clientCa -}}
tcpSocket: { port: http }
{{- else if and (eq .path "ready") (eq .root.Values.backend "triton") .root.Values.triton.probeModel -}}
exec:
  command: [emberline, probe, --url, http://127.0.0.1:8000, --model, {{ .root.Values.triton.probeModel | quote }}, --timeout, "2"]
{{- else -}}
httpGet: { path: /v2/health/{{ .path }}, port: http, scheme: {{ ternary "HTTPS" "HTTP" (ne .root.Values.tls.existingSecret "") }} }
{{- end -}}
{{- end }}

{{/* One alert. */}}
{{- define "emberline.alert" }}
        - alert: {{ .name }}
          expr: {{ .expr | quote }}
          for: {{ .for }}
          labels: { severity: {{ .severity }} }
          annotations:
            summary: {{ .summary | quote }}
            {{- with .runbooks }}
            runbook_url: {{ printf "%s#%s" . $.anchor | quote }}
            {{- end }}
{{- end }}
