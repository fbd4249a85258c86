// Package openapi holds the OpenAPI v2 description of finalizerd's REST API.
// The JSON beside this file is generated (buf.gen.yaml); this file is not.
//
// It imports the standard library only. It does not promise that the bytes stay
// equal between versions, only that they are valid JSON.
package openapi

import _ "embed" // for the document below

//go:embed finalizerd.swagger.json
var document []byte

// JSON returns a copy of the document.
func JSON() []byte { return append([]byte(nil), document...) }
