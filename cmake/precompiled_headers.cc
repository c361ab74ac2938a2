// Owns the headers that the folders share in precompiled form (Precompiled.cmake).
