package transport

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// podInProtobuf is a pod whose bytes are left as they are. Fields that this
// package does not know do not matter: nothing but a finalizer is added.
type podInProtobuf struct {
	body          []byte
	raw, metadata field // within the envelope, and within raw
}

// protobufPod reads as much of a pod as a create rests on: name, labels,
// annotations, finalizers and owners. False: the body is no Pod, or malformed.
func protobufPod(body []byte) (o object, p podInProtobuf, ok bool) {
	p.body = body
	var message []byte
	if p.raw, message, ok = unwrap(body, "Pod", "v1"); !ok {
		return o, p, false
	}
	ok = walk(message, func(f field) bool {
		if f.num != 1 {
			return true
		}
		again := p.metadata.num != 0
		p.metadata = f
		b, ok := f.bytes()
		return ok && !again && o.Metadata.fromProtobuf(b)
	})
	return o, p, ok
}

// with returns the body with one more finalizer, and all else byte for byte. The
// pod has metadata.
func (p podInProtobuf) with(finalizer string) []byte {
	envelope := p.body[len(magic):]
	pod, _ := p.raw.bytes()
	meta, _ := p.metadata.bytes()
	meta = protowire.AppendTag(slices.Clip(meta), 14, protowire.BytesType)
	meta = protowire.AppendString(meta, finalizer)
	return slices.Concat(magic, p.raw.splice(envelope, p.metadata.splice(pod, meta)))
}

func (m *metadata) fromProtobuf(message []byte) bool {
	return walk(message, func(f field) bool {
		switch f.num {
		case 1:
			return f.text(&m.Name)
		case 11:
			return putEntry(&m.Labels, f)
		case 12:
			return putEntry(&m.Annotations, f)
		case 13:
			var o owner
			b, ok := f.bytes()
			ok = ok && o.fromProtobuf(b)
			m.OwnerReferences = append(m.OwnerReferences, o)
			return ok
		case 14:
			var s string
			ok := f.text(&s)
			m.Finalizers = append(m.Finalizers, s)
			return ok
		}
		return true
	})
}

func (o *owner) fromProtobuf(message []byte) bool {
	return walk(message, func(f field) bool {
		switch f.num {
		case 1:
			return f.text(&o.Kind)
		case 3:
			return f.text(&o.Name)
		case 4:
			return f.text(&o.UID)
		case 5:
			return f.text(&o.APIVersion)
		case 6:
			var v uint64
			ok := f.varint(&v)
			o.Controller = protowire.DecodeBool(v)
			return ok
		}
		return true
	})
}

// putEntry adds an entry of a map of strings.
func putEntry(m *map[string]string, entry field) bool {
	b, ok := entry.bytes()
	var key, value string
	if !ok || !walk(b, func(f field) bool {
		switch f.num {
		case 1:
			return f.text(&key)
		case 2:
			return f.text(&value)
		}
		return true
	}) {
		return false
	}
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
	return true
}
