package transport

import (
	"encoding/json"
	"slices"
	"strings"
)

// The names of Argo Workflows that matter here.
const (
	completedLabel   = "workflows.argoproj.io/completed"
	nodeIDAnnotation = "workflows.argoproj.io/node-id"
	workflowGroup    = "argoproj.io"
	workflowKind     = "Workflow"
)

// object is as much of a pod as the decisions rest on.
type object struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   metadata `json:"metadata"`
}

type metadata struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace"`
	UID               string            `json:"uid"`
	ResourceVersion   string            `json:"resourceVersion"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
	Finalizers        []string          `json:"finalizers"`
	OwnerReferences   []owner           `json:"ownerReferences"`
	DeletionTimestamp string            `json:"deletionTimestamp"`
}

type owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

// workflow returns the controller of the pod if that is a Workflow. Labels prove
// nothing: users overwrite them.
func (o *object) workflow() (owner, bool) {
	i := slices.IndexFunc(o.Metadata.OwnerReferences, func(r owner) bool { return r.Controller })
	if i < 0 {
		return owner{}, false
	}
	ref := o.Metadata.OwnerReferences[i]
	group, _, grouped := strings.Cut(ref.APIVersion, "/")
	return ref, grouped && group == workflowGroup && ref.Kind == workflowKind
}

func (o *object) has(finalizer string) bool {
	return slices.Contains(o.Metadata.Finalizers, finalizer)
}

// fields is a JSON object whose values are left as they are.
type fields map[string]json.RawMessage

// object returns the object at key, nil if there is none or it is null, and
// false if something else is there.
func (f fields) object(key string) (fields, bool) {
	raw, ok := f[key]
	if !ok {
		return nil, true
	}
	var inner fields
	return inner, json.Unmarshal(raw, &inner) == nil
}

// text returns the string at key, "" if there is none.
func (f fields) text(key string) (s string) {
	if json.Unmarshal(f[key], &s) != nil {
		return ""
	}
	return s
}

// list returns the strings at key, nil if there are none or null is there, and
// false if something else is there.
func (f fields) list(key string) (list []string, ok bool) {
	raw, has := f[key]
	if !has {
		return nil, true
	}
	return list, json.Unmarshal(raw, &list) == nil
}

// put sets key to the JSON of value, which always has one.
func (f fields) put(key string, value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		panic("transport: " + err.Error())
	}
	f[key] = raw
}

func (f fields) bytes() []byte {
	raw, err := json.Marshal(f)
	if err != nil {
		panic("transport: " + err.Error()) // the values were JSON before
	}
	return raw
}
