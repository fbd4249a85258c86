package transport

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// delete answers a DELETE of a pod.
func (c *call) delete() (*http.Response, error) {
	options, ok := c.deleteOptions()
	if !ok {
		return c.forward()
	}
	pod, refused, err := c.read(c.target.pod)
	switch {
	case err != nil:
		return nil, err
	case pod == nil && refused.StatusCode == http.StatusForbidden:
		// The pod may be anybody's.
		c.observe(Unmanaged, nil)
		return c.forward()
	case pod == nil:
		return c.give(refused), nil
	}
	workflow, ours := pod.workflow()
	if !ours || options.uid != "" && options.uid != pod.Metadata.UID {
		return c.forward() // the API server itself tells of another UID
	}
	// From here on the DELETE is for this UID alone.
	direct := options.request(c, pod.Metadata.UID)
	if !options.expressible {
		return c.deleteAndRelease(direct, pod)
	}
	last, err := c.rehearseDelete(options, pod.Metadata.UID)
	if err != nil {
		return nil, err
	}
	if !last.ok() {
		return c.give(last), nil
	}
	ctx, cancel := c.within()
	defer cancel()
	answer, err := c.service.DeleteWorkflowPods(ctx, &finalizerv1.DeleteWorkflowPodsRequest{
		Namespace: c.target.namespace, Workflow: workflow.Name, WorkflowUid: workflow.UID,
		Pods: []*finalizerv1.PodRef{{Name: c.target.pod, Uid: pod.Metadata.UID}},
	})
	result, err := onlyResult(answer, err)
	if err != nil {
		return c.failed(err, func() (*http.Response, error) { return c.next.RoundTrip(direct) })
	}
	return c.deleted(result, last, direct)
}

// onlyResult takes the answer for one pod apart.
func onlyResult(answer *finalizerv1.DeleteWorkflowPodsResponse, err error) (*finalizerv1.PodResult, error) {
	switch {
	case err != nil:
		return nil, err
	case len(answer.GetResults()) != 1:
		return nil, status.Error(codes.Internal, "finalizerd answered without a result for the pod")
	}
	return answer.GetResults()[0], nil
}

// deleted turns the outcome for the pod into the answer to its DELETE.
func (c *call) deleted(r *finalizerv1.PodResult, last *kept, direct *http.Request) (*http.Response, error) {
	switch r.GetOutcome() {
	case finalizerv1.Outcome_OUTCOME_DELETED, finalizerv1.Outcome_OUTCOME_DELETING,
		finalizerv1.Outcome_OUTCOME_HELD_BY_FOREIGN_FINALIZER:
		c.observe(Deleted, nil)
		return c.give(last), nil
	case finalizerv1.Outcome_OUTCOME_GONE, finalizerv1.Outcome_OUTCOME_NOT_FOUND:
		c.observe(Deleted, nil)
		return c.gone(), nil
	case finalizerv1.Outcome_OUTCOME_SUPERSEDED:
		err := status.Error(codes.FailedPrecondition, "another pod has the name now")
		c.observe(Refused, err)
		return c.conflict(err), nil
	case finalizerv1.Outcome_OUTCOME_NOT_CAPTURED, finalizerv1.Outcome_OUTCOME_BLOCKED_BY_ADMISSION:
		// Kubernetes deletes what it is told to delete: the pod terminates, and
		// the finalizer keeps it until its result is stored. Nothing is lost.
		c.observe(Direct, nil)
		return c.next.RoundTrip(direct)
	}
	return c.failed(resultError(r), func() (*http.Response, error) { return c.next.RoundTrip(direct) })
}

// resultError is the error that a unary call would have had.
func resultError(r *finalizerv1.PodResult) error {
	switch r.GetErrorReason() {
	case finalizerv1.ErrorReason_ERROR_REASON_OTHER_INSTANCE, finalizerv1.ErrorReason_ERROR_REASON_NOT_A_WORKFLOW_POD:
		return status.Error(codes.NotFound, r.GetMessage())
	case finalizerv1.ErrorReason_ERROR_REASON_API_THROTTLED:
		return status.Error(codes.ResourceExhausted, r.GetMessage())
	}
	code := codes.Code(r.GetCode())
	if code == codes.OK {
		code = codes.Internal
	}
	return status.Error(code, r.GetMessage())
}

// deleteAndRelease is for options that the service cannot express: the API
// server deletes as it was told, and the service takes FIN off if it may. If it
// may not yet, the reconciler does once it may.
func (c *call) deleteAndRelease(direct *http.Request, pod *object) (*http.Response, error) {
	resp, err := c.next.RoundTrip(direct)
	if err != nil || resp.StatusCode >= 300 {
		return resp, err
	}
	if !pod.has(c.options.Finalizer) {
		c.observe(Direct, nil)
		return resp, nil
	}
	ctx, cancel := c.within()
	defer cancel()
	_, err = c.service.ReleasePod(ctx, &finalizerv1.ReleasePodRequest{
		Namespace: c.target.namespace, Pod: c.target.pod, PodUid: pod.Metadata.UID,
	})
	c.observe(Direct, err)
	return resp, nil
}

// deleteOptions are the options of a DELETE, from its body or its query.
type deleteOptions struct {
	all fields
	uid string // of the preconditions
	// expressible: DeleteWorkflowPods does the same.
	expressible bool
}

const ignoreStoreReadError = "ignoreStoreReadErrorWithClusterBreakingPotential"

func (c *call) deleteOptions() (deleteOptions, bool) {
	var o deleteOptions
	var ok bool
	if o.all, ok = c.writtenOptions(); !ok {
		return o, false
	}
	if unsafe := o.all[ignoreStoreReadError]; !isNull(unsafe) && string(unsafe) != "false" {
		// It is for pods that cannot be read, and excludes preconditions.
		return o, false
	}
	dryRun, ok := o.all.list("dryRun")
	if !ok || len(dryRun) > 0 {
		return o, false
	}
	conditions, ok := o.all.object("preconditions")
	if !ok {
		return o, false
	}
	if o.uid = conditions.text("uid"); o.uid == "" && !isNull(conditions["uid"]) {
		return o, false // no pod has it
	}
	policy := o.all.text("propagationPolicy")
	o.expressible = isNull(conditions["resourceVersion"]) && isNull(o.all["gracePeriodSeconds"]) &&
		isNull(o.all["orphanDependents"]) && (policy == "" || policy == "Background")
	return o, true
}

// writtenOptions returns the options as the caller wrote them. False: they are
// not understood.
func (c *call) writtenOptions() (all fields, ok bool) {
	all = fields{}
	switch {
	case len(c.body) == 0, c.target.mediaType == jsonBody && len(bytes.TrimSpace(c.body)) == 0:
		return all, fromQuery(all, c.req.URL.Query())
	case c.target.mediaType == protobufBody:
		return protobufDeleteOptions(c.body)
	}
	return all, json.Unmarshal(c.body, &all) == nil && all != nil
}

func isNull(raw json.RawMessage) bool { return raw == nil || string(raw) == "null" }

// fromQuery reads the options that Kubernetes takes from the query of a DELETE
// without a body. False: the API server will refuse them.
func fromQuery(all fields, query url.Values) bool {
	if query.Has(ignoreStoreReadError) {
		s := query.Get(ignoreStoreReadError) // without a value it is true
		all.put(ignoreStoreReadError, s != "0" && !strings.EqualFold(s, "false"))
	}
	if s := query.Get("propagationPolicy"); s != "" {
		all.put("propagationPolicy", s)
	}
	if s := query.Get("gracePeriodSeconds"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return false
		}
		all.put("gracePeriodSeconds", n)
	}
	if s := query.Get("orphanDependents"); s != "" {
		b, err := strconv.ParseBool(s)
		if err != nil {
			return false
		}
		all.put("orphanDependents", b)
	}
	return true
}

// request returns the caller's DELETE for that UID alone.
func (o deleteOptions) request(c *call, uid string) *http.Request {
	return c.deleteWith(o.forUID(uid))
}

// deleteWith is JSON whatever the caller wrote; the Accept, which decides on the
// answer's form, is the caller's.
func (c *call) deleteWith(all fields) *http.Request {
	req := c.with(all.bytes())
	req.Header.Set("Content-Type", jsonBody)
	return req
}

func (o deleteOptions) forUID(uid string) fields {
	all := without(o.all)
	all.put("kind", "DeleteOptions")
	all.put("apiVersion", "v1")
	conditions, _ := all.object("preconditions")
	conditions = without(conditions)
	conditions.put("uid", uid)
	all.put("preconditions", conditions)
	return all
}

// rehearseDelete asks what the API server would answer. For a DELETE with a body
// it heeds the body alone; in the query dryRun is for those who read audit logs.
func (c *call) rehearseDelete(o deleteOptions, uid string) (*kept, error) {
	all := o.forUID(uid)
	all.put("dryRun", []string{"All"})
	return c.rehearse(c.deleteWith(all))
}
