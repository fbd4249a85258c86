package kube

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// blockSize bounds what one insert or delete moves.
const blockSize = 512

// heldIndex keeps names in order of namespace and name. It is a list of sorted
// blocks: at 100,000 names an insert moves a few kilobytes, and a page is read
// from where the last one ended. The zero value is empty. It is not safe for
// concurrent use.
type heldIndex struct {
	blocks [][]types.NamespacedName // none is empty
	count  int
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// find returns the block that has or would have the name, the position in it,
// and whether it is there.
func (h *heldIndex) find(n types.NamespacedName) (block, at int, found bool) {
	block, found = slices.BinarySearchFunc(h.blocks, n, func(b []types.NamespacedName, n types.NamespacedName) int {
		return compareNames(b[0], n)
	})
	if found {
		return block, 0, true
	}
	if block > 0 {
		block--
	}
	if block == len(h.blocks) {
		return block, 0, false
	}
	at, found = slices.BinarySearchFunc(h.blocks[block], n, compareNames)
	return block, at, found
}

func (h *heldIndex) insert(n types.NamespacedName) {
	block, at, found := h.find(n)
	if found {
		return
	}
	h.count++
	if len(h.blocks) == 0 {
		h.blocks = [][]types.NamespacedName{{n}}
		return
	}
	b := slices.Insert(h.blocks[block], at, n)
	h.blocks[block] = b
	if len(b) > blockSize {
		half := len(b) / 2
		h.blocks[block] = slices.Clone(b[:half])
		h.blocks = slices.Insert(h.blocks, block+1, slices.Clone(b[half:]))
	}
}

func (h *heldIndex) remove(n types.NamespacedName) {
	block, at, found := h.find(n)
	if !found {
		return
	}
	h.count--
	h.blocks[block] = slices.Delete(h.blocks[block], at, at+1)
	if len(h.blocks[block]) == 0 {
		h.blocks = slices.Delete(h.blocks, block, block+1)
	}
}

// after calls yield for each name strictly after n, in order, until it returns
// false.
func (h *heldIndex) after(n types.NamespacedName, yield func(types.NamespacedName) bool) {
	block, at, found := h.find(n)
	if found {
		at++
	}
	for ; block < len(h.blocks); block, at = block+1, 0 {
		for _, name := range h.blocks[block][at:] {
			if !yield(name) {
				return
			}
		}
	}
}
