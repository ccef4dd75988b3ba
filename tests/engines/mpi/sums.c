/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduces of many types, sizes and communicators; each is compared with what it has to be. */
#include <math.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int wrong, rank, size;

static double part(int who, int at) { return (at % 97 - 48) * 0.25 + who; }

static void expect(int right, const char *what)
{
    if (!right) {
        printf("rank %d: wrong: %s\n", rank, what);
        wrong = 1;
    }
}

static void floats(MPI_Comm comm, int count, int in_place)
{
    float *mine = malloc(sizeof *mine * (size_t)count), *sum = malloc(sizeof *sum * (size_t)count);
    for (int at = 0; at < count; at++)
        (in_place ? sum : mine)[at] = (float)part(rank, at);
    MPI_Allreduce(in_place ? MPI_IN_PLACE : mine, sum, count, MPI_FLOAT, MPI_SUM, comm);
    for (int at = 0; at < count; at++)
        expect(fabs(sum[at] - size * (part(0, at) + (size - 1) / 2.0)) < 1e-4, "float");
    free(mine);
    free(sum);
}

static void others(MPI_Comm comm)
{
    double d[2] = {rank + 0.5, -rank}, ds[2];
    int i[3] = {rank, 2000000000, -5}, is[3];
    long l = rank, ls;
    MPI_Allreduce(d, ds, 2, MPI_DOUBLE, MPI_SUM, comm);
    expect(fabs(ds[0] - size * size / 2.0) < 1e-6 && fabs(ds[1] + size * (size - 1) / 2.0) < 1e-6,
           "double");
    MPI_Allreduce(i, is, 3, MPI_INT, MPI_SUM, comm);
    expect(is[0] == size * (size - 1) / 2, "int");
    expect(is[1] == (int)(unsigned)(2000000000u * (unsigned)size), "int modulo 2^32");
    MPI_Allreduce(&l, &ls, 1, MPI_LONG, MPI_SUM, comm); /* passed on */
    expect(ls == size * (size - 1) / 2, "long");
    MPI_Allreduce(i, is, 1, MPI_INT, MPI_MAX, comm); /* passed on */
    expect(is[0] == size - 1, "max");
}

/* Sums until there is a file, or until a sum is an error; says so in `file`.begun after the first. */
static int sum_until(const char *file)
{
    char begun[4096];
    snprintf(begun, sizeof begun, "%s.begun", file);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (;;) {
        float mine[2] = {rank + 1.0f, (float)(rank == 0 && access(file, F_OK) == 0)}, sum[2];
        if (MPI_Allreduce(mine, sum, 2, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS) {
            printf("rank %d has an error\n", rank);
            return 1;
        }
        expect(sum[0] == (float)(size * (size + 1) / 2), "float");
        if (sum[1] != 0)
            return 0;
        if (rank == 0 && access(begun, F_OK) != 0)
            fclose(fopen(begun, "w"));
    }
}

/* Between two groups each has the sum of the other. */
static void between_groups(MPI_Comm half)
{
    MPI_Comm both;
    float mine = (float)rank, sum = -1;
    int expected = 0;
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank % 2 ? 0 : 1, 7, &both);
    MPI_Allreduce(&mine, &sum, 1, MPI_FLOAT, MPI_SUM, both);
    for (int other = !(rank % 2); other < size; other += 2)
        expected += other;
    expect(sum == (float)expected, "intercommunicator");
    MPI_Comm_free(&both);
}

static void *sum_often(void *comm)
{
    for (int round = 0; round < 100; round++)
        floats(*(MPI_Comm *)comm, 1000, round % 2);
    return NULL;
}

/* Two threads sum at once, each on a communicator of its own, in any order. */
static void threads(void)
{
    MPI_Comm twins[2];
    pthread_t each[2];
    for (int i = 0; i < 2; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &twins[i]);
        pthread_create(&each[i], NULL, sum_often, &twins[i]);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(each[i], NULL);
        MPI_Comm_free(&twins[i]);
    }
}

int main(int argc, char **argv)
{
    MPI_Comm twin, half;
    int sum, mine, one = 1, level;
    if (argc > 1 && strcmp(argv[1], "threads") == 0)
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    else if (argc > 1 && strcmp(argv[1], "levels") == 0) /* ranks may ask for different ones */
        MPI_Init_thread(&argc, &argv,
                        getenv("OMPI_COMM_WORLD_RANK")[0] == '0' ? MPI_THREAD_MULTIPLE
                                                                 : MPI_THREAD_FUNNELED,
                        &level);
    else
        MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc > 1 && strcmp(argv[1], "die") == 0) {
        floats(MPI_COMM_WORLD, 1000, 0);
        if (rank == 1)
            raise(SIGKILL);
        for (;;)
            floats(MPI_COMM_WORLD, 1000, 0);
    }
    if (argc > 2 && strcmp(argv[1], "until") == 0) {
        int failed = sum_until(argv[2]);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Finalize();
        return failed || wrong;
    }
    if (argc > 1 && strcmp(argv[1], "threads") == 0)
        threads();
    floats(MPI_COMM_WORLD, 0, 0);
    floats(MPI_COMM_WORLD, 0, 1);
    floats(MPI_COMM_WORLD, 1, 0);
    floats(MPI_COMM_WORLD, 100000, 0);
    floats(MPI_COMM_WORLD, 3000000, 1);
    others(MPI_COMM_WORLD);
    MPI_Comm_dup(MPI_COMM_WORLD, &twin);
    floats(twin, 1000, 1);
    MPI_Comm_free(&twin);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half); /* passed on */
    MPI_Comm_size(half, &mine);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, half);
    expect(sum == mine, "split");
    between_groups(half);
    MPI_Comm_free(&half);
    if (rank == 0 && !wrong)
        printf("all sums of %d ranks are right\n", size);
    MPI_Finalize();
    return wrong;
}
