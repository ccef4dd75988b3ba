! SPDX-License-Identifier: Apache-2.0
program sums
    use mpi
    implicit none
    external :: add_at
    integer :: rank, ranks, error, total, there, op
    integer :: four(4)
    integer(kind=MPI_ADDRESS_KIND) :: address
    real :: mine(500), all(500)
    common /fixed/ four
    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
    mine = rank + 1
    call MPI_Allreduce(mine, all, 500, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, error)
    total = 1
    call MPI_Allreduce(MPI_IN_PLACE, total, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
    ! Without a buffer: the type has the address, and the operation is the program's. It is MPI's own.
    four = rank + 1
    call MPI_Get_address(four, address, error)
    call MPI_Type_create_hindexed(1, (/4/), (/address/), MPI_INTEGER, there, error)
    call MPI_Type_commit(there, error)
    call MPI_Op_create(add_at, .true., op, error)
    call MPI_Allreduce(MPI_IN_PLACE, MPI_BOTTOM, 1, there, op, MPI_COMM_WORLD, error)
    if (rank == 0) print '(a,f0.1,a,i0,a,4i3)', 'real ', all(500), ' integer ', total, ' four', four
    call MPI_Finalize(error)
end program
