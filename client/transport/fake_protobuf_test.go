package transport_test

import (
	"bytes"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Protobuf by hand: what the API server's client writes, field by field.

func pbText(num protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), s)
}

func pbNumber(num protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), v)
}

func pbMessage(num protowire.Number, fields ...[]byte) []byte {
	return pbText(num, string(slices.Concat(fields...)))
}

// pbObject is the envelope as client-go writes it, empty strings included.
func pbObject(version, kind string, fields ...[]byte) string {
	return "k8s\x00" + string(slices.Concat(pbMessage(1, pbText(1, version), pbText(2, kind)),
		pbMessage(2, fields...), pbText(3, ""), pbText(4, "")))
}

func pbOptions(fields ...[]byte) string { return pbObject("v1", "DeleteOptions", fields...) }

func pbEntry(num protowire.Number, key, value string) []byte {
	return pbMessage(num, pbText(1, key), pbText(2, value))
}

func pbOwner(api, kind string) []byte {
	return pbMessage(13, pbText(1, kind), pbText(3, "wf"), pbText(4, "wf-uid"), pbText(5, api), pbNumber(6, 1), pbNumber(7, 1))
}

// pbMeta is the metadata of a workflow pod, with more fields behind.
func pbMeta(more ...[]byte) []byte {
	return slices.Concat(pbText(1, "a"), pbText(2, ""), pbText(3, "argo"), pbMessage(8), pbEntry(11, completed, "false"),
		pbEntry(12, "workflows.argoproj.io/node-id", "n-a"), pbOwner("argoproj.io/v1alpha1", "Workflow"), slices.Concat(more...))
}

// pbPod has a spec and a field that nobody knows.
func pbPod(meta []byte) string {
	return pbObject("v1", "Pod", pbMessage(1, meta), pbMessage(2, pbText(10, "n")), pbNumber(99, 12345678901234567))
}

// fromProtobuf reads a pod that is created: name, owners and finalizers. Nil: it
// is none.
func fromProtobuf(body []byte) object {
	envelope, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !ok || !strings.Contains(string(body), "Pod") {
		return nil
	}
	raw, ok := pbFields(envelope)
	if !ok || len(raw[2]) != 1 {
		return nil
	}
	pod, ok := pbFields(raw[2][0])
	if !ok || len(pod[1]) != 1 {
		return nil
	}
	meta, ok := pbFields(pod[1][0])
	if !ok || len(meta[1]) != 1 {
		return nil
	}
	var finalizers []any
	for _, f := range meta[14] {
		finalizers = append(finalizers, string(f))
	}
	return object{"metadata": object{"name": string(meta[1][0]), "finalizers": finalizers}}
}

// pbFields returns the fields that have a length.
func pbFields(message []byte) (map[protowire.Number][][]byte, bool) {
	fields := map[protowire.Number][][]byte{}
	for len(message) > 0 {
		num, typ, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, false
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(num, typ, message); n < 0 {
			return nil, false
		}
		if typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			fields[num] = append(fields[num], value)
		}
		message = message[n:]
	}
	return fields, true
}
