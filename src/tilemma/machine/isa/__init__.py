"""What the PTX ISA says, as pure functions: who owns which element, where it lies, what it becomes.

The compiler's catalogue and layouts say the same things in other words.  This package is written from the
manual's formulas alone and imports nothing of theirs, so that a test can hold the two against each other.

``fragments``    which lane and register holds which element of a tile (mma.sync, wgmma, ldmatrix, stmatrix)
``forms``        which instruction forms exist, and where
``sparse``       where the 2:4 metadata of mma.sp and wgmma.sp lies and what it selects
``descriptors``  wgmma's shared-memory descriptors, their canonical layouts and swizzles
``tensormap``    tiled tensor maps: the limits of the encoding, and the elements a box transfer moves
``numerics``     conversions, scalar and packed arithmetic, matrix multiply-accumulate
``approx``       the approximate functions, and how far the manual lets them err
"""
