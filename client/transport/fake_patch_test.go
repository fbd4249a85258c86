package transport_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// change applies a patch to a pod, as far as the tests go.
func change(pod object, contentType string, body []byte) (code int, reason string) {
	meta := pod["metadata"].(object)
	uid, version := meta["uid"], meta["resourceVersion"]
	if strings.HasPrefix(contentType, "application/json-patch") {
		var steps []struct {
			Op, Path string
			Value    any
		}
		if json.Unmarshal(body, &steps) != nil {
			return 400, "BadRequest"
		}
		for _, s := range steps {
			if !step(pod, s.Op, s.Path, s.Value) {
				return 422, "Invalid"
			}
		}
	} else {
		var doc object
		if json.Unmarshal(body, &doc) != nil {
			return 400, "BadRequest"
		}
		if strings.HasPrefix(contentType, "application/strategic") {
			strategic(meta, doc)
		}
		merge(pod, doc)
	}
	meta, ok := pod["metadata"].(object)
	switch {
	case !ok || meta["labels"] == 7.0 || meta["finalizers"] == 7.0:
		return 422, "Invalid"
	case meta["uid"] != uid:
		return 422, "Invalid"
	case meta["resourceVersion"] != version:
		return 409, "Conflict"
	}
	return 200, ""
}

func merge(into, doc object) {
	for k, v := range doc {
		inner, isObject := v.(object)
		old, wasObject := into[k].(object)
		switch {
		case v == nil:
			delete(into, k)
		case isObject && wasObject:
			merge(old, inner)
		default:
			into[k] = v
		}
	}
}

// strategic works the finalizers of doc into meta and takes them out of doc.
func strategic(meta, doc object) {
	change, _ := doc["metadata"].(object)
	list, _ := meta["finalizers"].([]any)
	added, given := change["finalizers"].([]any)
	if raw, has := change["finalizers"]; has && raw == nil {
		list = nil
	} else if given {
		list = append(list, added...)
	}
	gone, _ := change["$deleteFromPrimitiveList/finalizers"].([]any)
	list = slices.DeleteFunc(list, func(f any) bool { return slices.Contains(gone, f) })
	meta["finalizers"] = list
	delete(change, "finalizers")
	delete(change, "$deleteFromPrimitiveList/finalizers")
	delete(change, "$setElementOrder/finalizers")
}

// step carries out one operation of a JSON patch.
func step(pod object, op, path string, value any) bool {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	var at any = pod
	for _, p := range parts[:len(parts)-1] {
		at = at.(object)[strings.ReplaceAll(p, "~1", "/")]
	}
	last := strings.ReplaceAll(parts[len(parts)-1], "~1", "/")
	if list, ok := at.([]any); ok {
		size := len(list)
		if op == "add" {
			size++
		}
		i, err := strconv.Atoi(last)
		if i < 0 {
			i += size // as evanphx/json-patch does
		}
		if err != nil || i < 0 || i >= size {
			return false
		}
		switch op {
		case "test":
			return list[i] == value
		case "remove":
			pod["metadata"].(object)["finalizers"] = slices.Delete(list, i, i+1)
			return true
		case "add":
			pod["metadata"].(object)["finalizers"] = slices.Insert(list, i, value)
			return true
		}
		return false
	}
	in := at.(object)
	_, has := in[last]
	switch op {
	case "remove":
		delete(in, last)
		return has
	case "test":
		a, _ := json.Marshal(in[last])
		b, _ := json.Marshal(value)
		return bytes.Equal(a, b)
	}
	in[last] = value
	return true
}
