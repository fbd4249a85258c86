package transport

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Kubernetes' protobuf, as much of it as the decisions rest on: four bytes, then
// a runtime.Unknown whose field raw is the object. The field numbers are those of
// the generated.proto files of k8s.io/apimachinery and k8s.io/api, and never
// change. What the API server might read otherwise than this file does (a
// message that comes twice and is merged, text that is not UTF-8) is not
// understood.
var magic = []byte("k8s\x00")

// field is one field of a message. from and to are where its value is in the
// message, behind the tag and with the length of one that has a length.
type field struct {
	num      protowire.Number
	typ      protowire.Type
	value    []byte
	from, to int
}

// walk calls each for every field until it returns false. False: that, or the
// message is malformed.
func walk(message []byte, each func(field) bool) bool {
	for at := 0; at < len(message); {
		num, typ, n := protowire.ConsumeTag(message[at:])
		if n < 0 {
			return false
		}
		from := at + n
		n = protowire.ConsumeFieldValue(num, typ, message[from:])
		if n < 0 {
			return false
		}
		at = from + n
		if !each(field{num, typ, message[from:at], from, at}) {
			return false
		}
	}
	return true
}

// bytes returns what is behind the length. False: the field has none.
func (f field) bytes() ([]byte, bool) {
	if f.typ != protowire.BytesType {
		return nil, false
	}
	b, n := protowire.ConsumeBytes(f.value)
	return b, n == len(f.value)
}

// text sets s to the string of the field.
func (f field) text(s *string) bool {
	b, ok := f.bytes()
	*s = string(b)
	return ok && utf8.Valid(b)
}

// varint sets v to the number of the field.
func (f field) varint(v *uint64) (ok bool) {
	if f.typ != protowire.VarintType {
		return false
	}
	var n int
	*v, n = protowire.ConsumeVarint(f.value)
	return n == len(f.value)
}

// splice returns message with other bytes in place of those of f.
func (f field) splice(message, b []byte) []byte {
	out := make([]byte, 0, len(message)+len(b)+protowire.SizeVarint(uint64(len(b))))
	out = append(out, message[:f.from]...)
	out = protowire.AppendBytes(out, b)
	return append(out, message[f.to:]...)
}

// unwrap returns the field raw of body, whose places are those behind magic, and
// the object in it, which is of that kind. A kind or version that is not given is
// the one that the resource has; so the API server sees it.
func unwrap(body []byte, kind string, versions ...string) (raw field, message []byte, ok bool) {
	envelope, ok := bytes.CutPrefix(body, magic)
	if !ok || len(envelope) == 0 {
		return field{}, nil, false
	}
	var typed bool
	ok = walk(envelope, func(f field) (ok bool) {
		var s string
		switch f.num {
		case 1:
			ok = !typed && isOf(f, kind, versions)
			typed = true
		case 2:
			again := raw.num != 0
			raw = f
			message, ok = f.bytes()
			ok = ok && !again
		case 3: // contentEncoding
			ok = f.text(&s) && s == ""
		case 4: // contentType
			ok = f.text(&s) && (s == "" || s == protobufBody)
		}
		return ok
	})
	return raw, message, ok
}

// isOf reports whether the TypeMeta is that of the kind.
func isOf(typeMeta field, kind string, versions []string) bool {
	b, ok := typeMeta.bytes()
	var gotVersion, gotKind string
	return ok && walk(b, func(f field) bool {
		switch f.num {
		case 1:
			return f.text(&gotVersion)
		case 2:
			return f.text(&gotKind)
		}
		return false
	}) && (gotKind == "" || gotKind == kind) && (gotVersion == "" || slices.Contains(versions, gotVersion))
}

// protobufDeleteOptions returns the options as their JSON would have them. False:
// they are malformed, or have fields that this package does not know.
func protobufDeleteOptions(body []byte) (fields, bool) {
	_, message, ok := unwrap(body, "DeleteOptions", "v1", "meta.k8s.io/v1")
	if !ok {
		return nil, false
	}
	all := fields{}
	var dryRun []string
	ok = walk(message, func(f field) bool {
		var s string
		switch f.num {
		case 1:
			return putOnce(all, "gracePeriodSeconds", f, func(v uint64) any { return int64(v) })
		case 2:
			return putPreconditions(all, f)
		case 3:
			return putOnce(all, "orphanDependents", f, asBool)
		case 4:
			return putText(all, "propagationPolicy", f)
		case 5:
			ok := f.text(&s)
			dryRun = append(dryRun, s)
			return ok
		case 6:
			return putOnce(all, ignoreStoreReadError, f, asBool)
		}
		return false
	})
	if dryRun != nil {
		all.put("dryRun", dryRun)
	}
	return all, ok
}

func asBool(v uint64) any { return protowire.DecodeBool(v) }

func putOnce(all fields, key string, f field, as func(uint64) any) bool {
	var v uint64
	if all[key] != nil || !f.varint(&v) {
		return false
	}
	all.put(key, as(v))
	return true
}

func putText(all fields, key string, f field) bool {
	var s string
	if all[key] != nil || !f.text(&s) {
		return false
	}
	all.put(key, s)
	return true
}

func putPreconditions(all fields, f field) bool {
	const key = "preconditions"
	b, ok := f.bytes()
	if !ok || all[key] != nil {
		return false
	}
	conditions := fields{}
	ok = walk(b, func(f field) bool {
		switch f.num {
		case 1:
			return putText(conditions, "uid", f)
		case 2:
			return putText(conditions, "resourceVersion", f)
		}
		return false
	})
	all.put(key, conditions)
	return ok
}
