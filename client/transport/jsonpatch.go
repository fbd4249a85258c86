package transport

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// operation is one step of a JSON patch.
type operation struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	From  string          `json:"from,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

const (
	finalizersPath = "/metadata/finalizers"
	labelsPath     = "/metadata/labels"
	uidPath        = "/metadata/uid"
)

// completedPath is the label's path; a slash within a step is written ~1.
var completedPath = labelsPath + "/" + strings.ReplaceAll(completedLabel, "/", "~1")

func (o operation) ofFinalizers() bool {
	return o.Path == finalizersPath || strings.HasPrefix(o.Path, finalizersPath+"/")
}

func (o operation) sets() bool { return o.Op == "add" || o.Op == "replace" }

// marks reports whether the step labels the pod completed.
func (o operation) marks() bool {
	if !o.sets() {
		return false
	}
	var value string
	var labels fields
	switch o.Path {
	case completedPath:
		return json.Unmarshal(o.Value, &value) == nil && value == "true"
	case labelsPath:
		return json.Unmarshal(o.Value, &labels) == nil && labels.text(completedLabel) == "true"
	}
	return false
}

// parseJSONPatch is parsePatch for JSON patches. Those that move, copy or
// replace metadata as a whole are left alone.
func parseJSONPatch(body []byte) (patch, bool) {
	var all []operation
	if json.Unmarshal(body, &all) != nil {
		return patch{}, false
	}
	var rest, steps []operation
	p := patch{unversioned: body, bound: func(uid string) []byte { return bind(uid, body) }}
	for _, o := range all {
		switch {
		case o.From != "", o.Path == "", o.Path == "/metadata" && o.Op != "test":
			return patch{}, false
		case o.ofFinalizers():
			steps = append(steps, o)
			continue
		}
		if o.Op == "test" && o.Path == uidPath {
			_ = json.Unmarshal(o.Value, &p.uid)
			continue
		}
		marks := o.marks()
		p.marks = p.marks || marks
		if !marks || o.Path == labelsPath {
			rest = append(rest, o)
		}
	}
	changes := func(o operation) bool { return o.Op != "test" }
	if slices.ContainsFunc(steps, changes) {
		p.finalizers = func(current []string) ([]string, bool) { return apply(steps, current) }
	}
	if slices.ContainsFunc(rest, changes) {
		p.rest = func(uid string) []byte { return encode(uid, rest) }
	}
	return p, p.marks || p.finalizers != nil
}

// encode returns steps that apply to no other UID. Tests are left out: the
// rehearsal has made them, on the pod as it was.
func encode(uid string, steps []operation) []byte {
	all := []operation{ofUID(uid)}
	for _, o := range steps {
		if o.Op != "test" {
			all = append(all, o)
		}
	}
	body, err := json.Marshal(all)
	if err != nil {
		panic("transport: " + err.Error()) // the values were JSON before
	}
	return body
}

// bind returns all steps of body, as they are, behind one that fails for another
// UID.
func bind(uid string, body []byte) []byte {
	var steps []json.RawMessage
	first, err := json.Marshal(ofUID(uid))
	if err == nil {
		err = json.Unmarshal(body, &steps)
	}
	if err == nil {
		body, err = json.Marshal(append([]json.RawMessage{first}, steps...))
	}
	if err != nil {
		panic("transport: " + err.Error()) // it was a list before
	}
	return body
}

func ofUID(uid string) operation {
	return operation{Op: "test", Path: uidPath, Value: json.RawMessage(strconv.Quote(uid))}
}

// apply carries out the steps on finalizers. False: one of them fails.
func apply(steps []operation, current []string) ([]string, bool) {
	list := slices.Clone(current)
	for _, o := range steps {
		var ok bool
		if o.Path == finalizersPath {
			list, ok = o.onList(list)
		} else {
			list, ok = o.onElement(list)
		}
		if !ok {
			return nil, false
		}
	}
	return list, true
}

func (o operation) onList(list []string) ([]string, bool) {
	if o.Op == "remove" {
		return nil, list != nil
	}
	var value []string
	if json.Unmarshal(o.Value, &value) != nil {
		return nil, false
	}
	if o.Op == "test" {
		return list, slices.Equal(value, list)
	}
	return value, o.sets()
}

func (o operation) onElement(list []string) ([]string, bool) {
	step := strings.TrimPrefix(o.Path, finalizersPath+"/")
	i, err := strconv.Atoi(step)
	if step == "-" && o.Op == "add" {
		i, err = len(list), nil
	}
	size := len(list)
	if o.Op == "add" {
		size++
	}
	if i < 0 {
		i += size // the API server counts from the end: -1 is the last, or behind it for an add
	}
	if err != nil || i < 0 || i >= size {
		return nil, false
	}
	var value string
	if o.Op != "remove" && json.Unmarshal(o.Value, &value) != nil {
		return nil, false
	}
	switch o.Op {
	case "remove":
		return slices.Delete(list, i, i+1), true
	case "add":
		return slices.Insert(list, i, value), true
	case "replace":
		list[i] = value
		return list, true
	case "test":
		return list, list[i] == value
	}
	return nil, false
}
