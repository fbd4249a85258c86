package kube

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// apiServer answers like an API server, over TLS and HTTP/2, and keeps what it
// was asked.
type apiServer struct {
	*httptest.Server
	mu   sync.Mutex
	seen []asked
}

type asked struct {
	method, uri, body, accept, contentType, agent string
	major                                         int
}

func newAPIServer(t *testing.T, handle http.HandlerFunc) *apiServer {
	t.Helper()
	s := &apiServer{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		s.seen = append(s.seen, asked{
			r.Method, r.URL.RequestURI(), string(body), r.Header.Get("Accept"),
			r.Header.Get("Content-Type"), r.UserAgent(), r.ProtoMajor,
		})
		s.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		handle(w, r)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *apiServer) requests() []asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]asked(nil), s.seen...)
}

func (s *apiServer) client(t *testing.T, o Options) *Client {
	t.Helper()
	c, err := New(&rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// sendProto answers an object in protobuf, as the API server does.
func sendProto(t *testing.T, w http.ResponseWriter, code int, obj runtime.Object) {
	t.Helper()
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(obj, &b); err != nil {
		t.Error(err)
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes())
}

func sendJSON(t *testing.T, w http.ResponseWriter, code int, obj any) {
	t.Helper()
	b, err := json.Marshal(obj)
	if err != nil {
		t.Error(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(b)
}

func failure(code int32, reason metav1.StatusReason, message string, details *metav1.StatusDetails) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   "Failure", Code: code, Reason: reason, Message: message, Details: details,
	}
}

func partial(m *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	m.TypeMeta = metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}
	return m
}

func statusError(s *metav1.Status) error { return &apierrors.StatusError{ErrStatus: *s} }
