export PYTHONPATH=$PYTHONPATH:bench:dev
timeout 30 python dev/h18c_a.py 2>&1
timeout 10 python dev/h18c_prof.py 2>&1 | grep -v Warn
(timeout 14 ncu --clock-control none -k regex:"matmul|nvjet|cutlass|gemm|splitK" --section SpeedOfLight --section MemoryWorkloadAnalysis --section MemoryWorkloadAnalysis_Tables --metrics l1tex__m_xbar2l1tex_read_bytes.sum,dram__bytes_read.sum,lts__t_sectors_op_read.sum,lts__t_sectors.max,lts__t_sectors.min,lts__t_sectors.avg,lts__lts2xbar_cycles_active.avg.pct_of_peak_sustained_elapsed,lts__xbar2lts_cycles_active.avg.pct_of_peak_sustained_elapsed python dev/h18c_ncu.py > $RES/ncu.txt 2>&1)
grep -v "INF\|OPT\|---\|^ *$" $RES/ncu.txt | head -150
