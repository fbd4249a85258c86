package server

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/api"
)

// codec is gRPC's proto codec, except that it accepts each request: grpc-go
// answers INTERNAL without details, and before any interceptor, to a request
// that its codec refuses, be it invalid UTF-8 or garbage. This one delivers an
// empty message with a mark among its unknown fields, and refused turns the mark
// into the error that the caller ought to see.
//
// A caller can send the mark itself. It is refused then, and that is all.
type codec struct{ encoding.CodecV2 }

// markField is the highest field number there is.
const (
	markField protowire.Number = 1<<29 - 1

	markMalformed = 1
	markTooLarge  = 2
)

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	msg, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("cannot decode into %T", v)
	}
	if data.Len() > MaxMessage {
		setMark(msg, markTooLarge)
		return nil
	}
	if c.CodecV2.Unmarshal(data, v) != nil {
		proto.Reset(msg)
		setMark(msg, markMalformed)
	}
	return nil
}

func setMark(msg proto.Message, mark uint64) {
	raw := protowire.AppendTag(nil, markField, protowire.VarintType)
	msg.ProtoReflect().SetUnknown(protowire.AppendVarint(raw, mark))
}

// refused returns the error for a marked request, and nil for all others.
func refused(req any) error {
	msg, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	for rest := msg.ProtoReflect().GetUnknown(); len(rest) > 0; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return nil
		}
		rest = rest[n:]
		if num == markField && typ == protowire.VarintType {
			mark, _ := protowire.ConsumeVarint(rest)
			return markError(mark)
		}
		if n = protowire.ConsumeFieldValue(num, typ, rest); n < 0 {
			return nil
		}
		rest = rest[n:]
	}
	return nil
}

func markError(mark uint64) error {
	if mark == markTooLarge {
		return tooLarge()
	}
	return malformed("the request is not a valid message: it cannot be decoded, or a string is not UTF-8")
}

func tooLarge() error {
	return &api.Refusal{
		Reason:  pb.ErrorReason_ERROR_REASON_REQUEST_TOO_LARGE,
		Message: fmt.Sprintf("the request is larger than %d bytes; split it", MaxMessage),
	}
}

func malformed(message string) error {
	return &api.Refusal{Reason: pb.ErrorReason_ERROR_REASON_INVALID_ARGUMENT, Message: message}
}
