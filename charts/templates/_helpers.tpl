{{- define "ddp-trainer.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "ddp-trainer.labels" -}}
{{ include "ddp-trainer.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "ddp-trainer.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "ddp-trainer.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "ddp-trainer.name" .) -}}
{{- end -}}

{{/* Name of the Lease that elects the leader among the replicas of this release. */}}
{{- define "ddp-trainer.lease" -}}
{{- include "ddp-trainer.name" . -}}-operator
{{- end -}}

{{/* Reference of an image. The argument is (list image context). */}}
{{- define "ddp-trainer.image" -}}
{{- $image := index . 0 -}}
{{- $context := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $context.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Peers that the NetworkPolicy of a job lets connect to its agents, as JSON. */}}
{{- define "ddp-trainer.agentClients" -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) -}}
{{- $pods := dict "matchLabels" (include "ddp-trainer.selector" . | fromYaml) -}}
{{- $operator := dict "namespaceSelector" $namespace "podSelector" $pods -}}
{{- prepend (.Values.networkPolicy.scrapers | default list) $operator | toJson -}}
{{- end -}}

{{/* RBAC rules of the operator in the namespaces that it manages. */}}
{{- define "ddp-trainer.rules" -}}
- apiGroups: [ddp-trainer.dev]
  resources: [ddpjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [ddp-trainer.dev]
  resources: [ddpjobs/status]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
{{- if .Values.networkPolicy.enabled }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}
