"""The PTX ISA as pure functions: fragment layouts, memory layouts, numeric semantics, legal forms.

The compiler's catalogue and layouts describe the same facts.  This package is written from the manual's formulas
alone and imports nothing of the compiler, so that a test can compare the two.

``fragments``    which lane and register holds which element of a tile (mma.sync, wgmma, ldmatrix, stmatrix)
``forms``        which instruction forms exist, and where
``sparse``       the position and meaning of the 2:4 metadata of mma.sp and wgmma.sp
``descriptors``  wgmma's shared-memory descriptors, their canonical layouts and swizzles
``tensormap``    tiled tensor maps: the limits of the encoding, and the elements a box transfer moves
``numerics``     conversions, scalar and packed arithmetic, matrix multiply-accumulate
``approx``       the approximate functions, and how far the manual lets them err
"""
