from galahad.cli import main

main()
