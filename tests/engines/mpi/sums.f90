! SPDX-License-Identifier: Apache-2.0
program sums
    use mpi
    implicit none
    integer :: rank, ranks, error, total
    real :: mine(500), all(500)
    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
    mine = rank + 1
    call MPI_Allreduce(mine, all, 500, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, error)
    total = 1
    call MPI_Allreduce(MPI_IN_PLACE, total, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
    if (rank == 0) print '(a,f0.1,a,i0)', 'real ', all(500), ' integer ', total
    call MPI_Finalize(error)
end program
