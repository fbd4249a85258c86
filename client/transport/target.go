package transport

import (
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// target is what a recognised request is about. pod is empty for a create.
type target struct {
	namespace, pod string
	mediaType      string
}

// The media types of bodies that are looked at.
const (
	jsonBody       = "application/json"
	protobufBody   = "application/vnd.kubernetes.protobuf"
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
	jsonPatch      = "application/json-patch+json"
)

// What Kubernetes takes for a name. Anything else is the API server's to refuse.
var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// recognise tells requests that may be finalizerd's, by all but their body.
func recognise(req *http.Request, base string) (target, bool) {
	switch req.Method {
	case http.MethodPatch, http.MethodDelete, http.MethodPost:
	default:
		return target{}, false
	}
	if req.URL == nil || req.Header.Get("Content-Encoding") != "" || req.Header.Get("Upgrade") != "" {
		return target{}, false
	}
	namespace, pod, ok := podPath(req.URL, base)
	if !ok || (pod == "") != (req.Method == http.MethodPost) {
		return target{}, false
	}
	t := target{namespace: namespace, pod: pod}
	if !t.media(req) {
		return target{}, false
	}
	return t, !req.URL.Query().Has("dryRun")
}

// media reports whether the body is one that can be looked at.
func (t *target) media(req *http.Request) bool {
	header := req.Header.Get("Content-Type")
	if header == "" {
		// The API server takes a body without a type for JSON, but for patches.
		t.mediaType = jsonBody
		return req.Method != http.MethodPatch
	}
	media, _, err := mime.ParseMediaType(header)
	if err != nil {
		return false
	}
	t.mediaType = media
	if req.Method == http.MethodPatch {
		return slices.Contains([]string{mergePatch, strategicPatch, jsonPatch}, media)
	}
	return media == jsonBody || media == protobufBody
}

// podPath takes the path of pods, or of one pod without a subresource, apart.
func podPath(u *url.URL, base string) (namespace, pod string, ok bool) {
	if u.RawPath != "" {
		return "", "", false // what needs escapes is no name of Kubernetes
	}
	path, ok := strings.CutPrefix(u.Path, base+"/")
	if !ok {
		return "", "", false
	}
	parts := strings.Split(strings.TrimRight(path, "/"), "/") // as the API server does
	if base == "" {
		// The first api or apis: a later one is another API server's, behind the
		// proxy subresource of this one.
		i := slices.IndexFunc(parts, func(s string) bool { return s == "api" || s == "apis" })
		parts = parts[max(i, 0):]
	}
	if len(parts) < 5 || len(parts) > 6 || !slices.Equal(parts[:3], []string{"api", "v1", "namespaces"}) || parts[4] != "pods" {
		return "", "", false
	}
	if len(parts) == 6 {
		if pod = parts[5]; !dnsName.MatchString(pod) {
			return "", "", false
		}
	}
	return parts[3], pod, dnsName.MatchString(parts[3])
}
