/* Is an all-reduce of Open MPI right? Each rank knows the data of all. argv: number of values. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned value(int rank, long i)
{
    return ((unsigned)i * 2654435761u ^ (unsigned)rank * 40503u) >> 12 & 1023;
}

int main(int argc, char **argv)
{
    int rank, ranks;
    long count, wrong = 0, i;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    count = argc > 1 ? atol(argv[1]) : 1;
    float *given = malloc(sizeof(float) * count), *sum = malloc(sizeof(float) * count);
    for (i = 0; i < count; i++)
        given[i] = value(rank, i);
    MPI_Allreduce(given, sum, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (i = 0; i < count; i++) {
        unsigned all = 0;
        for (int other = 0; other < ranks; other++)
            all += value(other, i);
        wrong += sum[i] != all;
    }
    printf("rank %d of %d at %s: %ld values, %ld wrong\n", rank, ranks,
           getenv("ONDIE_TUNNEL_ADDRESS"), count, wrong);
    MPI_Finalize();
    return wrong != 0;
}
