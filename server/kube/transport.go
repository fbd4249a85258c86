package kube

import (
	"net"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// argoVersion is the API of Argo Workflows.
var argoVersion = schema.GroupVersion{Group: "argoproj.io", Version: "v1alpha1"}

// acceptWhole asks for whole objects, in protobuf where served.
const acceptWhole = "application/vnd.kubernetes.protobuf,application/json"

// ObserveFunc is told of each request to the API server: verb as in RBAC
// ("get", "list", "watch", "create", "patch", "delete"), resource in plural, the HTTP code
// (0: no answer), and the time until the answer's headers. It must return fast
// and be safe for concurrent use.
type ObserveFunc func(verb, resource string, code int, took time.Duration)

// clientConfig copies the configuration for this service: no client-side rate,
// own user agent, each request observed.
func clientConfig(base *rest.Config, userAgent string, observe ObserveFunc) *rest.Config {
	cfg := rest.CopyConfig(base)
	cfg.QPS, cfg.Burst, cfg.RateLimiter = -1, 0, nil
	cfg.UserAgent = userAgent
	if observe != nil {
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return observer{next: next, observe: observe} })
	}
	return cfg
}

// httpClient makes a transport of its own. client-go shares one among equal
// configurations, and over HTTP/2 that is one connection, with one limit on
// streams and one TCP window for watches and writes alike; a dialer of its own
// makes a configuration unequal to every other.
func httpClient(cfg *rest.Config) (*http.Client, error) {
	cfg = rest.CopyConfig(cfg)
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	return rest.HTTPClientFor(cfg)
}

// restClient makes a client of one group that decodes metadata, Status and,
// given raw bytes, anything.
func restClient(cfg *rest.Config, h *http.Client, gv schema.GroupVersion) (*rest.RESTClient, error) {
	cfg = metadata.ConfigFor(cfg)
	cfg.GroupVersion = &gv
	cfg.APIPath = "/apis"
	if gv.Group == "" {
		cfg.APIPath = "/api"
	}
	return rest.RESTClientForConfigAndClient(cfg, h)
}

// clients are the clients of one API server, over two transports: a flood of
// writes does not hold up reads and watches.
type clients struct {
	meta, core, argo, writes rest.Interface
	watches                  metadata.Interface
	events                   eventsclient.EventsV1Interface
}

func newClients(cfg *rest.Config) (clients, error) {
	var to clients
	forReads, err := httpClient(cfg)
	if err != nil {
		return clients{}, err
	}
	forWrites, err := httpClient(cfg)
	if err != nil {
		return clients{}, err
	}
	core := corev1.SchemeGroupVersion
	if to.meta, err = restClient(cfg, forReads, core); err != nil {
		return clients{}, err
	}
	if to.argo, err = restClient(cfg, forReads, argoVersion); err != nil {
		return clients{}, err
	}
	if to.writes, err = restClient(cfg, forWrites, core); err != nil {
		return clients{}, err
	}
	typed := rest.CopyConfig(cfg)
	typed.APIPath, typed.GroupVersion = "/api", &core
	typed.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	typed.AcceptContentTypes, typed.ContentType = acceptWhole, ""
	if to.core, err = rest.RESTClientForConfigAndClient(typed, forReads); err != nil {
		return clients{}, err
	}
	if to.watches, err = metadata.NewForConfigAndClient(cfg, forReads); err != nil {
		return clients{}, err
	}
	to.events, err = eventsclient.NewForConfigAndClient(cfg, forReads)
	return to, err
}

type observer struct {
	next    http.RoundTripper
	observe ObserveFunc
}

// RoundTrip implements http.RoundTripper.
func (o observer) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	resp, err := o.next.RoundTrip(req)
	code := 0
	if err == nil {
		code = resp.StatusCode
	}
	verb, resource := verbOf(req)
	o.observe(verb, resource, code, time.Since(began))
	return resp, err
}

// WrappedRoundTripper lets client-go reach the transport below.
func (o observer) WrappedRoundTripper() http.RoundTripper { return o.next }

// verbOf reads verb and resource of a request from its method and path:
// /api/v1 or /apis/GROUP/VERSION, then maybe namespaces/NS, the resource, and
// maybe a name.
func verbOf(req *http.Request) (verb, resource string) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	at := -1
	for i, p := range parts {
		if p == "api" {
			at = i + 2
			break
		}
		if p == "apis" {
			at = i + 3
			break
		}
	}
	verb = strings.ToLower(req.Method)
	if at < 0 || at >= len(parts) {
		return verb, parts[len(parts)-1]
	}
	path := parts[at:]
	if path[0] == namespacesResource && len(path) > 2 {
		path = path[2:]
	}
	if verb == "post" {
		verb = verbCreate
	}
	if verb == verbGet && len(path) == 1 {
		verb = verbList
		if w := req.URL.Query().Get("watch"); w == "true" || w == "1" {
			verb = verbWatch
		}
	}
	return verb, path[0]
}
