/* Python's call of an update: check the arrays of one tensor and call ondie_update_one.
 *
 * Owns the extension module ondie.kernels._call, whose only type is Caller. Does not own the
 * updates (dispatch.c), nor the messages about wrong arguments: a call whose arguments need a
 * message or a copy returns None, and kernels/update.py checks them again and says what is wrong.
 *
 * It exists for speed: the same checks take Python 2 us, and the conversion of five pointers by
 * cffi as long again, while the update of a flash page of parameters takes about 2 us.
 * Source: Python/C API, vectorcall protocol (PEP 590); NumPy C API.
 */
#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <Python.h>
#include <structmember.h>

#include <numpy/arrayobject.h>

#include "ondie.h"

enum { MOST_SLOTS = 7, MOST_THREADS = 1024 }; /* threads: MOST_THREADS of kernels/threads.py */

typedef int (*update_one)(int, int, int, int, void *, void *, void *, void *, void *, void *,
                          void *, size_t, uint64_t, const float *, const ondie_codes *, uint32_t);

typedef struct {
    int place; /* index of the pointer among the arguments of ondie_update_one */
    int type;  /* NumPy's type number */
    int share; /* parameters of an entry */
    int flags; /* NumPy's flags that the array must have */
} slot;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    update_one update;
    const ondie_codes *codes;
    int isa, op, variant;
    int coefs;  /* number of coefficients */
    int random; /* 1 if each step needs a key */
    int slots;
    slot slot[MOST_SLOTS];
} Caller;

/* Return 1 if the object is a flat array with this type and these flags. */
static int is_flat(PyObject *object, int type, int flags) {
    if (!PyArray_Check(object)) return 0;
    PyArrayObject *array = (PyArrayObject *)object;
    return PyArray_NDIM(array) == 1 && PyArray_TYPE(array) == type &&
           (PyArray_FLAGS(array) & flags) == flags && PyArray_ISNOTSWAPPED(array);
}

/* Convert a Python int, but no subclass such as bool, between 0 and `most`; return 1 if it is. */
static int whole(PyObject *object, uint64_t most, uint64_t *value) {
    if (!PyLong_CheckExact(object)) return 0;
    unsigned long long found = PyLong_AsUnsignedLongLong(object);
    if (found == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    *value = found;
    return found <= most;
}

/* caller(arrays, coef, threads, first, key): the status of the update, or None if it was not done.
 */
static PyObject *call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    const Caller *c = (const Caller *)self;
    if (PyVectorcall_NARGS(nargsf) != 5 || (names && PyTuple_GET_SIZE(names))) {
        PyErr_SetString(PyExc_TypeError, "expected arrays, coef, threads, first, key");
        return NULL;
    }
    PyObject *arrays = args[0], *coef = args[1];
    uint64_t threads, first, key = 0;
    if (!PyTuple_CheckExact(arrays) || PyTuple_GET_SIZE(arrays) != c->slots) Py_RETURN_NONE;
    if (!whole(args[2], MOST_THREADS, &threads) || threads == 0) Py_RETURN_NONE;
    if (!whole(args[3], INT64_MAX, &first)) Py_RETURN_NONE;
    if (args[4] == Py_None ? c->random : !whole(args[4], UINT32_MAX, &key)) Py_RETURN_NONE;
    if (!is_flat(coef, NPY_FLOAT32, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED) ||
        PyArray_DIM((PyArrayObject *)coef, 0) != c->coefs)
        Py_RETURN_NONE;
    void *data[MOST_SLOTS] = {0};
    npy_intp count = -1;
    for (int i = 0; i < c->slots; i++) {
        const slot *s = &c->slot[i];
        PyObject *object = PyTuple_GET_ITEM(arrays, i);
        if (!is_flat(object, s->type, s->flags)) Py_RETURN_NONE;
        npy_intp size = PyArray_DIM((PyArrayObject *)object, 0);
        if (i == 0) count = size;
        if (size != (count + s->share - 1) / s->share) Py_RETURN_NONE;
        data[s->place] = PyArray_DATA((PyArrayObject *)object);
    }
    const float *scalars = PyArray_DATA((PyArrayObject *)coef);
    int status;
    Py_BEGIN_ALLOW_THREADS /* the caller's tuple keeps the arrays alive */
    status = c->update(c->isa, c->op, c->variant, (int)threads, data[0], data[1], data[2], data[3],
                       data[4], data[5], data[6], (size_t)count, first, scalars, c->codes,
                       (uint32_t)key);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(status);
}

/* Caller(update, isa, op, variant, codes, coefs, random, slots): update and codes are addresses;
 * slots has (place, dtype, share, written) of each array.
 */
static int init(PyObject *self, PyObject *args, PyObject *names) {
    Caller *c = (Caller *)self;
    unsigned long long update, codes;
    PyObject *slots;
    if (names && PyDict_GET_SIZE(names)) {
        PyErr_SetString(PyExc_TypeError, "Caller takes no keyword arguments");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "KiiiKiiO!", &update, &c->isa, &c->op, &c->variant, &codes,
                          &c->coefs, &c->random, &PyTuple_Type, &slots))
        return -1;
    c->update = (update_one)(uintptr_t)update;
    c->codes = (const ondie_codes *)(uintptr_t)codes;
    if (PyTuple_GET_SIZE(slots) > MOST_SLOTS) {
        PyErr_SetString(PyExc_ValueError, "too many slots");
        return -1;
    }
    c->slots = (int)PyTuple_GET_SIZE(slots);
    for (int i = 0; i < c->slots; i++) {
        slot *s = &c->slot[i];
        PyArray_Descr *type;
        int written;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(slots, i), "iO!ii", &s->place, &PyArrayDescr_Type,
                              &type, &s->share, &written))
            return -1;
        if (s->place < 0 || s->place >= MOST_SLOTS || s->share < 1) {
            PyErr_SetString(PyExc_ValueError, "slot out of range");
            return -1;
        }
        s->type = type->type_num;
        s->flags = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (written ? NPY_ARRAY_WRITEABLE : 0);
    }
    return 0;
}

static PyObject *create(PyTypeObject *type, PyObject *args, PyObject *names) {
    PyObject *self = PyType_GenericNew(type, args, names);
    if (self) ((Caller *)self)->call = call;
    return self;
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Caller, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, "The update of one operation in one format; calling it updates arrays in place."},
    {Py_tp_new, create},
    {Py_tp_init, init},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec type_spec = {
    .name = "ondie.kernels._call.Caller",
    .basicsize = sizeof(Caller),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = type_slots,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_call", .m_doc = "Calls of updates.", .m_size = -1,
};

PyMODINIT_FUNC PyInit__call(void) {
    import_array();
    PyObject *made = PyModule_Create(&module);
    if (!made) return NULL;
    PyObject *type = PyType_FromSpec(&type_spec);
    if (!type || PyModule_AddObject(made, "Caller", type) < 0) {
        Py_XDECREF(type);
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
