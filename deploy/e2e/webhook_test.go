package e2e

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// webhookServer answers the API server over TLS, with a certificate of its own.
func webhookServer(t *testing.T, answer func(*admissionv1.AdmissionResponse)) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "not an AdmissionReview", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		answer(review.Response)
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(mustJSON(review)) // the API server went: nobody to tell
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// refuses is a validating webhook's answer.
func refuses(r *admissionv1.AdmissionResponse) {
	r.Allowed = false
	r.Result = &metav1.Status{Message: "pods stay as they are"}
}

// meddles is a mutating webhook's answer: it sets a field that may not change.
func meddles(r *admissionv1.AdmissionResponse) {
	patch := admissionv1.PatchTypeJSONPatch
	r.PatchType, r.Patch = &patch, []byte(`[{"op":"add","path":"/spec/hostname","value":"meddled"}]`)
}

func certificateOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// hook is a webhook on updates of the fixture's pods that carry the label.
type hook struct {
	server *httptest.Server
	label  string
}

func (f *fixture) hookName(h hook) string { return h.label + "." + f.ns + ".example.com" }

func (f *fixture) clientConfig(h hook) admission.WebhookClientConfig {
	url := h.server.URL + "/admit"
	return admission.WebhookClientConfig{URL: &url, CABundle: certificateOf(h.server)}
}

func (f *fixture) scopeOf(h hook) (namespaces, pods *metav1.LabelSelector, rules []admission.RuleWithOperations) {
	namespaces = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: f.ns}}
	pods = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: h.label, Operator: metav1.LabelSelectorOpExists}}}
	rules = []admission.RuleWithOperations{{
		Operations: []admission.OperationType{admission.Update},
		Rule:       admission.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
	}}
	return namespaces, pods, rules
}

// validate installs the hook as a validating one. The returned function takes it
// away.
func (f *fixture) validate(h hook) (remove func()) {
	f.t.Helper()
	fail, side, name := admission.Fail, admission.SideEffectClassNone, f.hookName(h)
	namespaces, pods, rules := f.scopeOf(h)
	configurations := f.plane.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := configurations.Create(f.ctx, &admission.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admission.ValidatingWebhook{{
			Name: name, ClientConfig: f.clientConfig(h), FailurePolicy: &fail, SideEffects: &side, TimeoutSeconds: new(int32(2)),
			AdmissionReviewVersions: []string{"v1"}, NamespaceSelector: namespaces, ObjectSelector: pods, Rules: rules,
		}},
	}, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	return f.removal(func(ctx context.Context) error { return configurations.Delete(ctx, name, metav1.DeleteOptions{}) })
}

// mutate installs the hook as a mutating one. The returned function takes it away.
func (f *fixture) mutate(h hook) (remove func()) {
	f.t.Helper()
	fail, side, name := admission.Fail, admission.SideEffectClassNone, f.hookName(h)
	namespaces, pods, rules := f.scopeOf(h)
	configurations := f.plane.admin.AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := configurations.Create(f.ctx, &admission.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admission.MutatingWebhook{{
			Name: name, ClientConfig: f.clientConfig(h), FailurePolicy: &fail, SideEffects: &side, TimeoutSeconds: new(int32(2)),
			AdmissionReviewVersions: []string{"v1"}, NamespaceSelector: namespaces, ObjectSelector: pods, Rules: rules,
		}},
	}, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	return f.removal(func(ctx context.Context) error { return configurations.Delete(ctx, name, metav1.DeleteOptions{}) })
}

// removal runs at most once, at the latest when the test ends.
func (f *fixture) removal(remove func(context.Context) error) func() {
	done := false
	once := func() {
		if done {
			return
		}
		done = true
		if err := remove(context.Background()); err != nil {
			f.t.Error(err)
		}
	}
	f.t.Cleanup(once)
	return once
}

func TestB13_AWebhookThatBlocksIsToldAndTriedAgainUntilItIsGone(t *testing.T) {
	f := newFixture(t)
	down := webhookServer(t, refuses)
	hooks := []struct {
		hook
		install func(hook) func()
		field   bool // the answer blames a field, not the webhook
	}{
		{hook{webhookServer(t, refuses), "validating"}, f.validate, false},
		{hook{webhookServer(t, meddles), "mutating"}, f.mutate, true},
		{hook{down, "down"}, f.validate, false},
	}
	wf := f.workflow("wf", podNode("validating", "Running"), podNode("mutating", "Running"), podNode("down", "Running"))
	pods := map[string]*corev1.Pod{}
	var removals []func()
	for _, h := range hooks {
		pods[h.label] = f.pod(wf, h.label, inPhase(corev1.PodSucceeded), withLabel(h.label, ""))
		removals = append(removals, h.install(h.hook))
		f.waitRefused(pods[h.label])
	}
	down.Close() // failurePolicy Fail: as good as a refusal
	// A pod of the same workflow that nothing blocks.
	free := f.pod(wf, "free", inPhase(corev1.PodSucceeded))
	f.setNodes(wf, podNode("validating", "Succeeded"), podNode("mutating", "Succeeded"), podNode("down", "Succeeded"), podNode("free", "Succeeded"))
	for _, h := range hooks {
		f.deletePod(h.label)
	}

	d := f.newReconciler(daemonOptions{name: "blocked", policy: soon})
	f.waitFor("released", leftReleased, free)
	for _, h := range hooks {
		pod := pods[h.label]
		e := f.wantEvent(pod, "BlockedByAdmission")
		blames := `"` + f.hookName(h.hook) + `"`
		if h.field {
			blames = "field spec"
		}
		if e.Type != corev1.EventTypeWarning || !strings.Contains(e.Note, blames) {
			t.Errorf("%s: the event says %q, want it to blame %s", h.label, e.Note, blames)
		}
		// A caller meets the same block: one more of the same event, not another.
		for _, door := range d.doors() {
			_, err := door.ReleasePod(f.ctx, f.releasing(pod.Name, string(pod.UID)))
			info := errorInfo(err)
			if info.GetReason() != "BLOCKED_BY_ADMISSION" {
				t.Errorf("%s over %s: %v", h.label, door.name, err)
			}
			if field, webhook := info.GetMetadata()["field"], info.GetMetadata()["webhook"]; h.field && !strings.HasPrefix(field, "spec") || !h.field && webhook != f.hookName(h.hook) {
				t.Errorf("%s over %s: field %q, webhook %q", h.label, door.name, field, webhook)
			}
		}
		f.eventually("the blocks of "+h.label+" are a series", func() (bool, error) {
			found := f.eventsOn(pod.UID, "BlockedByAdmission")
			return len(found) == 1 && found[0].Series != nil && found[0].Series.Count >= 2, nil
		})
		f.wantHeld(pod)
	}
	if n := f.metric(d, "finalizerd_admission_blocks_total"); n == "" || n == "0" {
		t.Errorf("finalizerd_admission_blocks_total is %q", n)
	}
	// Slow: of its own accord it has tried each pod once or twice until now.
	requests := f.requests(d.userAgent)
	for _, h := range hooks {
		if n := len(onlyWrites(ofPod(requests, h.label))); n > 2+2 {
			t.Errorf("%s: %d writes so far", h.label, n)
		}
	}
	if ready, text := f.readiness(d); !ready {
		t.Errorf("not ready for what is no fault of the service:\n%s", text)
	}
	for _, remove := range removals {
		remove()
	}
	unblocked := time.Now()
	for _, h := range hooks {
		f.eventuallyWithin(90*time.Second, "the pod "+h.label+" is released by itself", func() (bool, error) { return gone(f.liveOf(pods[h.label])), nil })
	}
	t.Logf("all were released %s after the webhooks went", time.Since(unblocked).Round(time.Second))
	if got := f.listed(d, none); len(got) > 0 {
		t.Errorf("still held: %v", got)
	}
	for _, h := range hooks {
		if n := len(f.eventsOn(pods[h.label].UID, "BlockedByAdmission")); n != 1 {
			t.Errorf("%s: %d events", h.label, n)
		}
	}
}

func TestB13_WhatBlockedACallIsFinishedByTheReconciler(t *testing.T) {
	f := newFixture(t)
	h := hook{webhookServer(t, refuses), "validating"}
	wf := f.workflow("wf", podNode("pod", "Succeeded"))
	pod := f.pod(wf, "pod", inPhase(corev1.PodSucceeded), withLabel(h.label, ""))
	remove := f.validate(h)
	f.waitRefused(pod)
	d := f.newReconciler(daemonOptions{name: "blocked-call"})
	f.waitPods(d, wf, 1)
	got, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true})
	if err != nil {
		t.Fatal(err)
	}
	wantResult(t, got.GetResults()[0], pb.Outcome_OUTCOME_BLOCKED_BY_ADMISSION, captured)
	f.wantEvent(pod, "BlockedByAdmission")
	// The deletion is on record: once the webhook is gone the pod goes, whether or
	// not the caller comes back.
	remove()
	f.eventuallyWithin(90*time.Second, "the pod is gone", func() (bool, error) { return gone(f.liveOf(pod)), nil })
}
