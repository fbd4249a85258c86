package argo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	workflows "github.com/argoproj/argo-workflows/v4/pkg/client/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// plane is a running deploy/local, watched by the test.
type plane struct {
	dir       string
	config    *rest.Config // the administrator's
	admin     kubernetes.Interface
	workflows workflows.Interface
	pods      cache.GenericLister // metadata only
	stops     []func()
	spaces    atomic.Int64
}

func startPlane(ctx context.Context, dir string) (*plane, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	c, kubeconfig, err := startAndHear(ctx, spec{
		name: "local", dir: dir, path: program("local"),
		args: []string{"up", "--dir", dir, "--audit-log", filepath.Join(dir, "audit.jsonl"), "--die-with-stdin"},
	}, func(line string) (string, bool) { return strings.CutPrefix(line, "KUBECONFIG=") })
	if err != nil {
		return nil, err
	}
	p := &plane{dir: dir, stops: []func(){c.closeInput}}
	if err := p.connect(ctx, kubeconfig); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

func (p *plane) connect(ctx context.Context, kubeconfig string) (err error) {
	if p.config, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return err
	}
	p.config.QPS, p.config.UserAgent = -1, "argo-stories"
	if p.admin, err = kubernetes.NewForConfig(p.config); err != nil {
		return err
	}
	if p.workflows, err = workflows.NewForConfig(p.config); err != nil {
		return err
	}
	meta, err := metadata.NewForConfig(p.config)
	if err != nil {
		return err
	}
	factory := metadatainformer.NewSharedInformerFactory(meta, 0)
	informer := factory.ForResource(schema.GroupVersionResource{Version: "v1", Resource: "pods"})
	p.pods = informer.Lister()
	informer.Informer()
	watching, stop := context.WithCancel(context.Background())
	factory.Start(watching.Done())
	p.stops = append(p.stops, stop)
	if !cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced) {
		return fmt.Errorf("pods cannot be watched: %w", ctx.Err())
	}
	return nil
}

func (p *plane) stop() {
	for i := len(p.stops) - 1; i >= 0; i-- {
		p.stops[i]()
	}
}

// namespace makes a new one, with the service account that Argo gives pods.
func (p *plane) namespace(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("story-%d", p.spaces.Add(1))
	if _, err := p.admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.admin.CoreV1().ServiceAccounts(name).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

// podsOf returns what is known of the pods of a namespace, from the watch.
func (p *plane) podsOf(namespace string) []*metav1.PartialObjectMetadata {
	objects, err := p.pods.ByNamespace(namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	found := make([]*metav1.PartialObjectMetadata, 0, len(objects))
	for _, object := range objects {
		if pod, ok := object.(*metav1.PartialObjectMetadata); ok {
			found = append(found, pod)
		}
	}
	return found
}

// throughProxy writes a kubeconfig like the given one, but as the sidecar's is: with the proxy as its server, whose certificate is not
// checked, and the token in a file.
func (p *plane) throughProxy(t *testing.T, direct, server string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(direct)
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range config.Clusters {
		cluster.Server, cluster.InsecureSkipTLSVerify, cluster.CertificateAuthorityData = server, true, nil
	}
	for _, user := range config.AuthInfos {
		token := user.Token
		user.Token, user.TokenFile = "", direct+".token"
		if err := os.WriteFile(user.TokenFile, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := direct + ".proxied"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

const readyWithin = time.Minute
