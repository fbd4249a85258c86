package transport

import (
	"encoding/json"
	"maps"
	"slices"
)

// patch is a PATCH of a pod that may be finalizerd's: it touches finalizers, or
// labels the pod completed.
type patch struct {
	marks bool   // labels completed
	uid   string // the UID that the patch itself names
	// unversioned is the patch without a resourceVersion.
	unversioned []byte
	// bound is the patch as it is, for a pod of the given UID alone.
	bound func(uid string) []byte
	// rest is what remains without finalizers and the completed label, for a pod
	// of the given UID. Nil: nothing of significance remains.
	rest func(uid string) []byte
	// finalizers applies the patch to a list of finalizers. Nil: it does not
	// touch them. False: the API server will refuse it.
	finalizers func(current []string) ([]string, bool)
}

// work is what a patch does to the finalizers of one pod.
type work struct {
	releases       bool // takes FIN off
	added, removed []string
}

// against tells what the patch does to a pod with these finalizers.
func (p patch) against(current []string, fin string) (work, bool) {
	if p.finalizers == nil {
		return work{}, true
	}
	after, ok := p.finalizers(current)
	if !ok {
		return work{}, false
	}
	w := work{releases: slices.Contains(current, fin) && !slices.Contains(after, fin)}
	w.added = slices.DeleteFunc(slices.Clone(after), func(f string) bool { return f == fin || slices.Contains(current, f) })
	w.removed = slices.DeleteFunc(slices.Clone(current), func(f string) bool { return f == fin || slices.Contains(after, f) })
	return w, true
}

// parsePatch takes a patch apart. False: it is not finalizerd's, or of a shape
// that is left alone.
func parsePatch(mediaType string, body []byte) (patch, bool) {
	if mediaType == jsonPatch {
		return parseJSONPatch(body)
	}
	var doc fields
	if json.Unmarshal(body, &doc) != nil {
		return patch{}, false
	}
	meta, ok := doc.object("metadata")
	if !ok || meta == nil {
		return patch{}, false
	}
	labels, ok := meta.object("labels")
	if !ok || isDirected(doc) || isDirected(meta) || isDirected(labels) {
		return patch{}, false
	}
	p := patch{marks: labels.text(completedLabel) == "true", uid: meta.text("uid")}
	if p.finalizers, ok = finalizersOf(mediaType, meta); !ok || p.finalizers == nil && !p.marks {
		return patch{}, false
	}
	p.unversioned = withMetadata(doc, without(meta, "resourceVersion")).bytes()
	p.bound = func(uid string) []byte {
		named := maps.Clone(meta)
		named.put("uid", uid)
		return withMetadata(doc, named).bytes()
	}
	p.rest = restOf(doc, meta, labels, p.marks)
	return p, true
}

// isDirected reports whether a directive of strategic merge stands in f itself
// that does more than merge.
func isDirected(f fields) bool {
	_, patch := f["$patch"]
	_, retain := f["$retainKeys"]
	return patch || retain
}

// The directives of strategic merge for finalizers.
const (
	finalizersKey    = "finalizers"
	deleteFinalizers = "$deleteFromPrimitiveList/finalizers"
	orderFinalizers  = "$setElementOrder/finalizers"
)

// finalizersOf returns what a merge patch or a strategic merge patch does to
// finalizers, nil for nothing. False: it is malformed.
func finalizersOf(mediaType string, meta fields) (func([]string) ([]string, bool), bool) {
	list, ok := meta.list(finalizersKey)
	if !ok {
		return nil, false
	}
	raw, given := meta[finalizersKey]
	cleared := given && string(raw) == "null"
	if mediaType == mergePatch {
		if !given {
			return nil, true
		}
		return func([]string) ([]string, bool) { return list, true }, true
	}
	gone, ok := meta.list(deleteFinalizers)
	if !ok {
		return nil, false
	}
	if len(gone) == 0 && !cleared {
		return nil, true // it only adds
	}
	return func(current []string) ([]string, bool) {
		var after []string
		if !cleared {
			after = slices.DeleteFunc(slices.Clone(current), func(f string) bool { return slices.Contains(gone, f) })
		}
		for _, f := range list {
			if !slices.Contains(after, f) {
				after = append(after, f)
			}
		}
		return after, true
	}, true
}

// insignificant are the fields of metadata that say which pod is meant.
var insignificant = []string{"name", "namespace", "uid", "resourceVersion", finalizersKey, deleteFinalizers, orderFinalizers}

func restOf(doc, meta, labels fields, marks bool) func(string) []byte {
	rest := without(meta, insignificant...)
	if marks {
		labels = without(labels, completedLabel)
		if delete(rest, "labels"); len(labels) > 0 {
			rest.put("labels", labels)
		}
	}
	if string(rest["creationTimestamp"]) == "null" {
		delete(rest, "creationTimestamp") // Go's clients write it unasked
	}
	others := without(doc, "metadata", "apiVersion", "kind")
	if len(rest) == 0 && len(others) == 0 {
		return nil
	}
	return func(uid string) []byte {
		rest := maps.Clone(rest)
		rest.put("uid", uid)
		return withMetadata(doc, rest).bytes()
	}
}

func without(f fields, keys ...string) fields {
	rest := maps.Clone(f)
	if rest == nil {
		rest = fields{}
	}
	for _, k := range keys {
		delete(rest, k)
	}
	return rest
}

func withMetadata(doc, meta fields) fields {
	changed := maps.Clone(doc)
	changed.put("metadata", meta)
	return changed
}

// foreignPatch is a strategic merge patch of finalizers that are not ours. It
// needs no resourceVersion.
func foreignPatch(uid string, w work) []byte {
	meta := fields{}
	meta.put("uid", uid)
	if len(w.added) > 0 {
		meta.put(finalizersKey, w.added)
	}
	if len(w.removed) > 0 {
		meta.put(deleteFinalizers, w.removed)
	}
	return withMetadata(fields{}, meta).bytes()
}
