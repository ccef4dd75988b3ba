/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduces of an MPI program in any language by the switch: LD_PRELOAD this library.
 *
 * MPI_Allreduce of MPI_FLOAT, MPI_DOUBLE and MPI_INT with MPI_SUM, on MPI_COMM_WORLD and others of
 * the same ranks in the same order, goes to a process beside this one (p4reduce.mpi.proxy) through memory that both map;
 * all else is MPI's own. Calls of one process come one after the other, as MPI has them without
 * MPI_THREAD_MULTIPLE, so that all communicators of the same ranks share one job.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef P4R_PYTHON
#define P4R_PYTHON "python3"
#endif

/* proxy.py has the same numbers. */
enum request { BEGIN = 1, JOIN, SUM, LEAVE, END, HERE };
enum type { FLOAT = 0, DOUBLE, INT, NO_TYPE };
enum { PROXY_SOCKET = 3, PROXY_MEMORY = 4 };
enum { END_POLLS = 200, END_PAUSE_US = 100000, LONGEST_TEXT = 1 << 20, LONGEST_HOST = 2048 };
/* Bytes of a sum at a time: they stay in the processor's cache between the copies of both sides, and
 * the shared memory stays small. */
enum { PART = 8 << 20 };

struct head {
    uint32_t kind; /* of a request; of an answer 0, or 1 where the text is an error's */
    uint32_t type;
    uint64_t size; /* bytes of text that follow, or numbers to sum */
};

static struct {
    int on, rank, socket, memory_fd, keyval, types;
    pid_t child;
    char *memory;
    size_t size;
    unsigned long by_switch, by_mpi;
} shim = {.socket = -1, .memory_fd = -1, .keyval = MPI_KEYVAL_INVALID};

extern char **environ;

static int move(ssize_t (*one)(int, void *, size_t), void *data, size_t size)
{
    char *at = data;
    while (size > 0) {
        ssize_t moved = one(shim.socket, at, size);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return 0;
        at += moved;
        size -= (size_t)moved;
    }
    return 1;
}

/* A proxy that has ended is an answer, not a SIGPIPE. */
static ssize_t put(int fd, void *data, size_t size) { return send(fd, data, size, MSG_NOSIGNAL); }

static ssize_t get(int fd, void *data, size_t size) { return recv(fd, data, size, 0); }

/* Asks the proxy; returns its text, which the caller frees, and in *failed whether it is an error's.
 */
static char *ask(enum request kind, enum type type, uint64_t size, const char *text, int *failed)
{
    struct head head = {kind, (uint32_t)type, size}, answer = {0};
    char *said;
    *failed = 1;
    if (shim.socket < 0 || !move(put, &head, sizeof head) ||
        (text && !move(put, (void *)(uintptr_t)text, size)) || !move(get, &answer, sizeof answer) ||
        answer.size > LONGEST_TEXT)
        return strdup("the process beside this rank has ended; what it said is above");
    said = calloc(answer.size + 1, 1);
    if (!said || !move(get, said, answer.size)) {
        free(said);
        return strdup("the process beside this rank has ended, or there is no memory");
    }
    *failed = answer.kind != 0;
    return said;
}

static void complain(const char *text)
{
    fprintf(stderr, "p4reduce: rank %d: %s\n", shim.rank, text ? text : "no memory");
}

/* Starts the proxy with the socket and the memory as its descriptors 3 and 4. */
static void start_proxy(void)
{
    const char *python = getenv("P4REDUCE_MPI_PYTHON");
    char *const command[] = {(char *)(uintptr_t)(python ? python : P4R_PYTHON), "-m",
                             "p4reduce.mpi.proxy", NULL};
    int pair[2], high[2];
    size_t count = 0, kept = 0;
    char **variables;
    posix_spawn_file_actions_t actions;

    shim.memory_fd = memfd_create("p4reduce-mpi", MFD_CLOEXEC);
    while (environ[count])
        count++;
    variables = calloc(count + 1, sizeof *variables);
    if (shim.memory_fd < 0 || !variables ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
        free(variables);
        return;
    }
    for (count = 0; environ[count]; count++)
        if (strncmp(environ[count], "LD_PRELOAD=", 11) != 0) /* it is no MPI program */
            variables[kept++] = environ[count];
    /* Above those that they become, so that neither takes the other's place. */
    high[0] = fcntl(pair[1], F_DUPFD_CLOEXEC, PROXY_MEMORY + 1);
    high[1] = fcntl(shim.memory_fd, F_DUPFD_CLOEXEC, PROXY_MEMORY + 1);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, high[0], PROXY_SOCKET);
    posix_spawn_file_actions_adddup2(&actions, high[1], PROXY_MEMORY);
    if (posix_spawnp(&shim.child, command[0], &actions, NULL, command, variables) == 0)
        shim.socket = pair[0];
    else
        close(pair[0]);
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    close(high[0]);
    close(high[1]);
    free(variables);
}

static void attach(void)
{
    int size, provided, most, failed = 1, any = 0, length = 0;
    char name[MPI_MAX_PROCESSOR_NAME] = {0}, host[LONGEST_HOST] = {0};
    char *names = NULL, *told = NULL, *said, *join;

    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    PMPI_Comm_rank(MPI_COMM_WORLD, &shim.rank);
    PMPI_Query_thread(&provided);
    if (size < 2)
        return;
    PMPI_Allreduce(&provided, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD); /* ranks may differ */
    if (most == MPI_THREAD_MULTIPLE) {
        if (shim.rank == 0)
            complain("with MPI_THREAD_MULTIPLE all sums are MPI's");
        return;
    }
    start_proxy();
    PMPI_Get_processor_name(name, &length);
    said = ask(HERE, NO_TYPE, strlen(name), name, &failed);
    /* A proxy that has ended says so at the next request. */
    snprintf(host, sizeof host, "%s", failed || !said ? name : said);
    free(said);
    names = calloc((size_t)size, sizeof host);
    PMPI_Gather(host, sizeof host, MPI_CHAR, names, sizeof host, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (shim.rank == 0) {
        char *text = names ? calloc((size_t)size, sizeof host + 1) : NULL;
        for (int rank = 0; text && rank < size; rank++) {
            strcat(text, names + (size_t)rank * sizeof host);
            strcat(text, "\n");
        }
        told = ask(BEGIN, NO_TYPE, text ? strlen(text) : 0, text, &failed);
        length = told ? (int)strlen(told) : 0;
        free(text);
    }
    free(names);
    PMPI_Bcast(&failed, 1, MPI_INT, 0, MPI_COMM_WORLD);
    PMPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (shim.rank != 0)
        told = calloc((size_t)length + 1, 1);
    if (!told)
        PMPI_Abort(MPI_COMM_WORLD, 1);
    PMPI_Bcast(told, length, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (failed) {
        if (shim.rank == 0)
            complain(told);
        PMPI_Barrier(MPI_COMM_WORLD); /* so that rank 0's words are there */
        PMPI_Abort(MPI_COMM_WORLD, 1);
    }
    join = calloc((size_t)length + 64, 1);
    if (!join)
        PMPI_Abort(MPI_COMM_WORLD, 1);
    sprintf(join, "%d %d\n", shim.rank, size);
    strcat(join, told);
    said = ask(JOIN, NO_TYPE, strlen(join), join, &failed);
    if (failed)
        complain(said);
    PMPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (any)
        PMPI_Abort(MPI_COMM_WORLD, 1);
    shim.types = said ? atoi(said) : 0;
    free(said);
    free(told);
    free(join);
    /* Whether a communicator has the ranks of MPI_COMM_WORLD, in their order. */
    PMPI_Comm_create_keyval(MPI_COMM_DUP_FN, MPI_COMM_NULL_DELETE_FN, &shim.keyval, NULL);
    shim.on = 1;
}

static void detach(void)
{
    int failed, status;
    if (!shim.on)
        return;
    shim.on = 0;
    free(ask(LEAVE, NO_TYPE, 0, NULL, &failed));
    PMPI_Barrier(MPI_COMM_WORLD); /* the network ends when all have left */
    free(ask(END, NO_TYPE, 0, NULL, &failed));
    close(shim.socket);
    for (int poll = 0; waitpid(shim.child, &status, WNOHANG) == 0; poll++) {
        if (poll == END_POLLS)
            kill(shim.child, SIGKILL);
        usleep(poll < END_POLLS ? END_PAUSE_US / 10 : END_PAUSE_US);
    }
    if (getenv("P4REDUCE_MPI_VERBOSE") && shim.rank == 0)
        fprintf(stderr, "p4reduce: %lu all-reduces by the switch, %lu by MPI\n", shim.by_switch,
                shim.by_mpi);
}

/* By size as well: Fortran's types have that of the compiler options that MPI was built with. */
static enum type type_of(MPI_Datatype datatype)
{
    int size = 0;
    const int is_float = datatype == MPI_FLOAT || datatype == MPI_DOUBLE || datatype == MPI_REAL ||
                         datatype == MPI_DOUBLE_PRECISION;
    if (!is_float && datatype != MPI_INT && datatype != MPI_INT32_T && datatype != MPI_INTEGER)
        return NO_TYPE;
    PMPI_Type_size(datatype, &size);
    if (is_float)
        return size == 4 ? FLOAT : size == 8 ? DOUBLE : NO_TYPE;
    return size == 4 ? INT : NO_TYPE;
}

static int is_ours(MPI_Comm comm)
{
    void *value;
    int found = 0, alike = MPI_UNEQUAL;
    if (comm == MPI_COMM_WORLD)
        return 1;
    PMPI_Comm_get_attr(comm, shim.keyval, &value, &found);
    if (!found) { /* the first time; duplicates take the answer along */
        PMPI_Comm_compare(comm, MPI_COMM_WORLD, &alike);
        value = alike == MPI_CONGRUENT ? &shim : NULL;
        PMPI_Comm_set_attr(comm, shim.keyval, value);
    }
    return value != NULL;
}

static int has_room(size_t size)
{
    void *grown;
    if (size <= shim.size)
        return 1;
    if (ftruncate(shim.memory_fd, (off_t)size))
        return 0;
    grown = shim.memory ? mremap(shim.memory, shim.size, size, MREMAP_MAYMOVE)
                        : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, shim.memory_fd, 0);
    if (grown == MAP_FAILED)
        return 0;
    shim.memory = grown;
    shim.size = size;
    return 1;
}

int MPI_Init(int *argc, char ***argv)
{
    int code = PMPI_Init(argc, argv);
    if (code == MPI_SUCCESS)
        attach();
    return code;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int code = PMPI_Init_thread(argc, argv, required, provided);
    if (code == MPI_SUCCESS)
        attach();
    return code;
}

int MPI_Finalize(void)
{
    detach();
    return PMPI_Finalize();
}

/* What goes through the switch; NO_TYPE: MPI has to do it. */
static enum type type_by_switch(long long count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm)
{
    enum type type = shim.on && op == MPI_SUM ? type_of(datatype) : NO_TYPE;
    if (type != NO_TYPE && shim.types >> type & 1 && count > 0 && is_ours(comm))
        return type;
    shim.by_mpi++;
    return NO_TYPE;
}

static int sum(const void *send_buffer, void *receive_buffer, size_t count, enum type type,
               MPI_Comm comm)
{
    const size_t width = type == DOUBLE ? 8 : 4, bytes = count * width;
    const char *from = send_buffer == MPI_IN_PLACE ? receive_buffer : send_buffer;
    char *to = receive_buffer, *said;
    int failed;

    if (!has_room(bytes < PART ? bytes : PART)) {
        complain("no memory that can be shared for an all-reduce");
        PMPI_Comm_call_errhandler(comm, MPI_ERR_NO_MEM);
        return MPI_ERR_NO_MEM;
    }
    for (size_t done = 0; done < bytes; done += PART) {
        const size_t part = bytes - done < PART ? bytes - done : PART;
        memcpy(shim.memory, from + done, part);
        said = ask(SUM, type, part / width, NULL, &failed);
        if (failed) {
            complain(said);
            free(said);
            PMPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
            return MPI_ERR_OTHER;
        }
        free(said);
        memcpy(to + done, shim.memory, part);
    }
    shim.by_switch++;
    return MPI_SUCCESS;
}

int MPI_Allreduce(const void *send_buffer, void *receive_buffer, int count, MPI_Datatype datatype,
                  MPI_Op op, MPI_Comm comm)
{
    const enum type type = type_by_switch(count, datatype, op, comm);
    if (type == NO_TYPE)
        return PMPI_Allreduce(send_buffer, receive_buffer, count, datatype, op, comm);
    return sum(send_buffer, receive_buffer, (size_t)count, type, comm);
}

#if MPI_VERSION >= 4
int MPI_Allreduce_c(const void *send_buffer, void *receive_buffer, MPI_Count count,
                    MPI_Datatype datatype, MPI_Op op, MPI_Comm comm)
{
    const enum type type = type_by_switch(count, datatype, op, comm);
    if (type == NO_TYPE)
        return PMPI_Allreduce_c(send_buffer, receive_buffer, count, datatype, op, comm);
    return sum(send_buffer, receive_buffer, (size_t)count, type, comm);
}
#endif

#ifdef OPEN_MPI
/* Open MPI's Fortran calls do not go through those of C. */
extern void pmpi_init_(MPI_Fint *) __attribute__((weak));
extern void pmpi_init_thread_(MPI_Fint *, MPI_Fint *, MPI_Fint *) __attribute__((weak));
extern void pmpi_finalize_(MPI_Fint *) __attribute__((weak));
extern void pmpi_allreduce_(void *, void *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *,
                            MPI_Fint *) __attribute__((weak));
extern int mpi_fortran_in_place_ __attribute__((weak));

void mpi_init_(MPI_Fint *error)
{
    pmpi_init_(error);
    if (*error == MPI_SUCCESS)
        attach();
}

void mpi_init_thread_(MPI_Fint *required, MPI_Fint *provided, MPI_Fint *error)
{
    pmpi_init_thread_(required, provided, error);
    if (*error == MPI_SUCCESS)
        attach();
}

void mpi_finalize_(MPI_Fint *error)
{
    detach();
    pmpi_finalize_(error);
}

void mpi_allreduce_(void *send_buffer, void *receive_buffer, MPI_Fint *count, MPI_Fint *datatype,
                    MPI_Fint *op, MPI_Fint *comm, MPI_Fint *error)
{
    const int in_place = &mpi_fortran_in_place_ && send_buffer == (void *)&mpi_fortran_in_place_;
    const MPI_Comm c_comm = MPI_Comm_f2c(*comm);
    const enum type type = type_by_switch(*count, MPI_Type_f2c(*datatype), MPI_Op_f2c(*op), c_comm);
    if (type == NO_TYPE) /* it knows Fortran's MPI_BOTTOM, which is another one than C's */
        pmpi_allreduce_(send_buffer, receive_buffer, count, datatype, op, comm, error);
    else
        *error = sum(in_place ? MPI_IN_PLACE : send_buffer, receive_buffer, (size_t)*count, type,
                     c_comm);
}
#endif
