{{- define "ddp-trainer.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" -}}
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

{{/* Labels of the objects of `helm test`, which are no part of the operator. */}}
{{- define "ddp-trainer.testLabels" -}}
{{- $labels := include "ddp-trainer.labels" . | fromYaml -}}
{{- set $labels "app.kubernetes.io/component" "test" | toYaml -}}
{{- end -}}

{{/* Annotations of what the pod of `helm test` needs. The argument is the place in their order. */}}
{{- define "ddp-trainer.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* Pull secrets of the values and of a parent chart. Both may be names or objects. */}}
{{- define "ddp-trainer.pullSecrets" -}}
{{- $names := list -}}
{{- range concat (.Values.imagePullSecrets | default list) ((.Values.global | default dict).imagePullSecrets | default list) -}}
{{- if kindIs "string" . }}{{ $names = append $names . }}{{ else }}{{ $names = append $names .name }}{{ end -}}
{{- end -}}
{{- with $names | uniq -}}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . }}}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "ddp-trainer.serviceAccount" -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.name must be set when serviceAccount.create is false, because the operator needs a ServiceAccount of its own." -}}
{{- end -}}
{{- .Values.serviceAccount.name | default (include "ddp-trainer.name" .) -}}
{{- end -}}

{{/* Name of the Lease that elects the leader among the replicas of this release. */}}
{{- define "ddp-trainer.lease" -}}
{{- include "ddp-trainer.name" . -}}-operator
{{- end -}}

{{/*
Reference of an image. The argument is (list name context), and the name is that of the value. The
registry of a parent chart applies to a repository that names none.
*/}}
{{- define "ddp-trainer.image" -}}
{{- $context := index . 1 -}}
{{- $image := index $context.Values (index . 0) -}}
{{- if not $image.repository -}}
{{- fail (printf "%s.repository must be set, for example to registry.example/ddp-trainer/%s, because no registry publishes the images of ddp-trainer: build and push them as the README says." (index . 0) (ternary "operator" "trainer" (eq (index . 0) "image"))) -}}
{{- end -}}
{{- $repository := $image.repository -}}
{{- $registry := ($context.Values.global | default dict).imageRegistry -}}
{{- $first := $repository | splitList "/" | first -}}
{{- if and $registry (not (regexMatch "[.:]|^localhost$" $first)) -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" $registry) $repository -}}
{{- end -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default $context.Chart.AppVersion }}
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
{{- if .Values.checkpointClaims }}
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch]
{{- end }}
{{- if has "Native" .Values.gangs.types }}
- apiGroups: [scheduling.k8s.io]
  resources: [workloads, podgroups]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- if has "Volcano" .Values.gangs.types }}
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- if has "Coscheduling" .Values.gangs.types }}
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- if has "Kueue" .Values.gangs.types }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, delete]
{{- end }}
{{- if .Values.finishedJobs }}
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [ddpjob-finished]
  verbs: [get, patch]
# RBAC cannot limit a creation to a name; the ValidatingAdmissionPolicy does.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- end -}}

{{/* Whether the operator watches the Kubernetes nodes: "true", or nothing. */}}
{{- define "ddp-trainer.watchNodes" -}}
{{- $wanted := .Values.operator.watchNodes -}}
{{- if kindIs "invalid" $wanted }}{{ $wanted = empty .Values.operator.watchNamespaces }}{{ end -}}
{{- if $wanted }}true{{ end -}}
{{- end -}}

{{/* A value of JSON in CEL, where all values of a list must have one type. */}}
{{- define "ddp-trainer.cel" -}}
{{- if kindIs "map" . -}}
dyn({ {{- range $key, $value := . }}{{ $key | squote }}: {{ include "ddp-trainer.cel" $value }}, {{ end -}} })
{{- else if kindIs "slice" . -}}
dyn([ {{- range . }}{{ include "ddp-trainer.cel" . }}, {{ end -}} ])
{{- else -}}
dyn({{ . | toString | squote }})
{{- end -}}
{{- end }}

{{/* JSON with generated CEL expressions, and in them the annotations of the values. The argument is (list JSON context). */}}
{{- define "ddp-trainer.withAnnotations" -}}
{{- $names := list }}
{{- $prefixes := list }}
{{- range (index . 1).Values.podTemplateAnnotations }}
{{- if hasSuffix "*" . }}{{ $prefixes = append $prefixes (trimSuffix "*" .) }}{{ else }}{{ $names = append $names . }}{{ end }}
{{- end }}
{{- $text := replace "__ANNOTATION_NAMES__" (include "ddp-trainer.cel" $names) (index . 0) }}
{{- replace "__ANNOTATION_PREFIXES__" (include "ddp-trainer.cel" $prefixes) $text }}
{{- end }}
