"""Reference genomes: reading, storing, cutting into windows. numpy only, never torch."""
